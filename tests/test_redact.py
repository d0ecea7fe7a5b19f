import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper.redact import Redactor, redact, redact_environment, secret_values

B64 = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"
SECRETS = {
    "hub token": (f"Using token hf_{B64} now", f"hf_{B64}"),
    "API key": (f"key sk-proj-{B64}.", f"sk-proj-{B64}"),
    "GitHub token": (f"clone with ghp_{B64}", f"ghp_{B64}"),
    "AWS key id": ("id AKIAABCDEFGHIJKLMNOP used", "AKIAABCDEFGHIJKLMNOP"),
    "AWS secret": ("aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYzz", "wJalrXUtnFEMIK7"),
    "bearer": (f"Authorization: Bearer {B64}", B64),
    "basic": ("authorization: basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "URL password": ("fetch https://user:s3cr3t!@host/x", "s3cr3t!"),
    "URL token": (f"git clone https://{B64}@github.com/a/b", B64),
    "signed query": ("GET https://b.s3/x?X-Amz-Signature=0123456789abcdef&y=1", "0123456789abcdef"),
    "environment": ("HF_TOKEN=abcd1234efgh vllm serve m", "abcd1234efgh"),
    "environment key": ("export WANDB_API_KEY='0123456789abcdef'", "0123456789abcdef"),
    "flag": ("vllm serve m --api-key abcd1234 --port 1", "abcd1234"),
    "dict": ("non-default args: {'api_key': ['abcd1234'], 'port': 1}", "abcd1234"),
    "JSON": ('{"password": "hunter22", "user": "x"}', "hunter22"),
    "web token": (f"jwt eyJhbGciOiJI.eyJzdWIiOiIx.{B64}", "eyJzdWIiOiIx"),
    "argument list": ("['--api-key', 'abcd1234', '--port']", "abcd1234"),
    "second of a list": ("args api_key=['abcd1234', 'efgh5678']", "efgh5678"),
    "coloured": (f"event \x1b[36mapi_key\x1b[0m=\x1b[35m{B64}\x1b[0m", B64),
    "words in quotes": ("set password='correct horse battery' port=1", "horse battery"),
    "bytes": ("{'password': b'abcd1234'}", "abcd1234"),
    "token header": ("Authorization: Token abcd1234efgh", "abcd1234efgh"),
    "token flag": ("serve --token abcd1234 --tokenizer x", "abcd1234"),
    "short name": ("export DB_PASS=abcd1234 serve", "abcd1234"),
    "registry": ('config "auth": "dXNlcjpwYXNzd29yZA=="', "dXNlcjpwYXNzd29yZA"),
    "cookie": ("Set-Cookie: sid=abcd1234; Path=/", "abcd1234"),
    "bare token": (f'json "token": "{B64}"', B64),
    "chat hook": ("POST https://hooks.slack.com/services/T0/B0/abcd1234", "abcd1234"),
    "package index": (f"npm_{B64} pypi-{B64}", f"npm_{B64}"),
    "payment": (f"key sk_live_{B64}", B64),
    "mail": (f"key SG.{B64}.{B64}", B64),
    "after a dash": (f"file run-hf_{B64}.log", B64),
    "Google": ("AIza" + "b" * 35, "AIza" + "b" * 35),
}

HARMLESS = [
    "KeyError: 'layers.1.mlp.experts.w13_weight'",
    "max_num_batched_tokens=8192, tokenizer='/models/m', hf_token=None, 2048 tokens per request",
    "bos_token='<s>', eos_token='</s>', pad_token_id=0, num_key_value_heads=8",
    "cache keys: 12, key cache layout, secret of speed",
    "http://127.0.0.1:8000/v1 tcp://10.0.0.1:29500 user@host",
    "ValueError: To serve at least one request with the model's max seq len (2048)",
    "unexpected token: something, next token: 42, token=<|endoftext|>, author: a, authority",
    "task-key-value pairs, monkey=1, keyboard=us",
]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_gone_and_the_rest_stays(name):
    text, secret = SECRETS[name]
    redacted = redact(text)
    assert secret not in redacted
    assert "[redacted" in redacted
    assert redacted.split()[0] == text.split()[0] or text.split()[0] in (
        secret,
        "HF_TOKEN=abcd1234efgh",
    )


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_left_alone(text):
    assert redact(text) == text


def test_a_private_key_block_is_gone_over_its_lines_and_line_numbers_stay():
    block = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\ndef==\n-----END RSA PRIVATE KEY-----"
    text = f"before\n{block}\nafter\n"
    lines = redact(text).split("\n")
    assert len(lines) == len(text.split("\n"))
    assert lines[0] == "before"
    assert lines[5] == "after"
    assert set(lines[1:5]) == {"[redacted private key]"}
    one_line = "key -----BEGIN PRIVATE KEY-----MIIE-----END PRIVATE KEY----- end"
    assert redact(one_line) == "key [redacted private key] end"


def test_lines_are_redacted_as_they_come():
    line = Redactor()
    assert line("-----BEGIN PRIVATE KEY-----\n") == "[redacted private key]\n"
    assert line("MIIEabc\n") == "[redacted private key]\n"
    assert line("-----END PRIVATE KEY----- end\n") == "[redacted private key] end\n"
    assert line("HF_TOKEN=abcd1234\n") == "HF_TOKEN=[redacted secret]\n"


def test_known_values_go_wherever_they_stand():
    environment = {
        "HF_TOKEN": "plainvalue",
        "HOME": "/root",
        "MY_SECRET": "anothervalue",
        "A_KEY": "",
    }
    known = secret_values(environment)
    assert known == ["plainvalue", "anothervalue"]
    shown = secret_values(
        {"DB_PASS": 'a "b" \\ c', "PWD": "/home", "LDAP_PW": "one line\nnext line"}
    )
    assert {'a "b" \\ c', 'a \\"b\\" \\\\ c', "a%20%22b%22%20%5C%20c", "next line"} <= {*shown}
    assert "/home" not in shown
    assert redact("set API_KEY=[redacted secret] 1") == "set API_KEY=[redacted secret] 1"
    assert (
        redact("a plainvalue b\nanothervalue", known) == "a [redacted secret] b\n[redacted secret]"
    )
    hidden = redact_environment(environment)
    assert hidden["HF_TOKEN"] == hidden["MY_SECRET"] == "[redacted secret]"
    assert hidden["HOME"] == "/root"
    assert hidden["A_KEY"] == ""


@given(st.text(max_size=400))
def test_redacting_twice_changes_nothing_more(text):
    once = redact(text)
    assert redact(once) == once


@given(st.text(alphabet="ab/:@=._-?&'\" \nTOKENkeyhf_", max_size=300))
def test_lines_stay_lines(text):
    assert redact(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "atom",
    [
        "a",
        "hf_",
        "Cookie: a",
        "token=",
        "api_key=[",
        "SG.",
        "dapi0",
        "://a",
        "eyJa.",
        "api_key",
        "TOKEN",
        "a:",
        "-",
        "--api-key",
    ],
)
def test_time_grows_linearly(atom):
    import time

    def seconds(size):
        text, times = atom * (size // len(atom)), []
        for _ in range(3):
            start = time.process_time()
            redact(text)
            times.append(time.process_time() - start)
        return min(times)

    # Eight times the text: 8 if linear, 64 if quadratic; beneath 5 ms nothing is measured.
    assert seconds(64_000) < max(0.005, 24 * seconds(8_000))
