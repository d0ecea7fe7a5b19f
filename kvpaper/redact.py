"""Secrets out of text: tokens, keys, passwords and private key blocks, line by line."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from urllib.parse import quote

_GATE = re.compile(
    r"(?i)token|secret|pass|api_?-?key|access_?-?key|private|credential|bearer|basic |cookie|auth"
    r"|://|signature|hf_|sk[-_]|gh[pousr]_|github_pat|xox|akia|asia|aiza|nvapi-|glpat-|gsk_|npm_"
    r"|pypi-|dapi|r8_|sg\.|eyj|accountkey|-----"
)
_NAME = (
    r"(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passwd|private[_-]?key"
    r"|access[_-]?key(?:[_-]?id)?|account[_-]?key|credentials?|auth(?:orization)?[_-]?token"
    r"|(?:access|hf|hub|huggingface|session|security|refresh|bot|github|wandb|id|api)[_-]?token"
    r"|(?<=[\"'])auth(?=[\"']))"
)
_REAL = r"(?!(?:None|null|True|False|true|false)\b)"
_VALUE = rf"""{_REAL}(?P<value>[^\s"',;(){{}}\[\]<>&\x1b]{{4,4096}})"""
_GAP = r"(?:\s|\x1b\[[\d;]{0,8}m){0,6}"  # some loggers colour names and values
_TOKENS = (
    (r"hf_[A-Za-z0-9]{16,256}", "hub token"),
    (r"(?:gh[pousr]_|github_pat_)\w{20,256}", "GitHub token"),
    (r"xox[a-z]-[A-Za-z0-9-]{10,256}", "Slack token"),
    (r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])", "AWS key"),
    (r"AIza[\w-]{35}", "Google key"),
    (r"eyJ[\w-]{8,4096}\.[\w-]{8,8192}\.[\w-]{4,4096}", "web token"),
    (r"SG\.[\w-]{16,64}\.[\w-]{16,64}", "API key"),
    (r"(?:sk-|[rs]k_live_|glpat-|nvapi-|gsk_|npm_|pypi-|r8_)[\w-]{16,256}", "API key"),
    (r"dapi[0-9a-f]{32}", "API key"),
)
_RULES = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        *((rf"(?P<value>(?<![A-Za-z0-9]){token})", kind) for token, kind in _TOKENS),
        (
            r"(?i)\b(?:bearer|basic|authorization[\"']?[=:] {0,4}[\"']?(?:token|apikey))\s{1,4}"
            r"(?P<value>[A-Za-z0-9+/_.=~-]{8,4096})",
            "credentials",
        ),
        (r"(?i)\bcookie[\"']?: {0,4}(?P<value>[^\n]{4,4096})", "cookie"),
        (r"[a-z][a-z0-9+.-]{1,20}://[^\s:/@?#]{0,256}:(?P<value>[^\s/@?#]{1,256})@", "password"),
        (r"[a-z][a-z0-9+.-]{1,20}://(?P<value>[^\s:/@?#]{16,256})@", "credentials"),
        (r"://hooks\.slack\.com/services/(?P<value>[\w/]{8,256})", "credentials"),
        (
            r"(?i)[?&](?:token|sig|signature|x-amz-(?:signature|credential|security-token)|key)="
            r"(?P<value>[^\s&\"']{4,4096})",
            "signed query",
        ),
        (
            rf"(?i){_NAME}\w{{0,40}}[\"']?[=:] {{0,4}}[\[(](?P<value>[^\])\n]{{4,4096}})[\])]",
            "secret",
        ),
        (
            rf"(?i){_NAME}\w{{0,40}}[\"']?{_GAP}[=:]{_GAP}b?(?P<quote>[\"']){_REAL}"
            r"(?P<value>(?:(?!(?P=quote)).){4,4096})(?P=quote)",
            "secret",
        ),
        (rf"(?i){_NAME}\w{{0,40}}[\"']?{_GAP}[=:]{_GAP}[\"'\[(]{{0,4}}{_VALUE}", "secret"),
        (rf"(?i)--(?:{_NAME}\w{{0,40}}|token)[\"']?[ =,]{{1,4}}[\"']?{_VALUE}", "secret"),
        (rf"\b[A-Z0-9_]{{0,60}}(?:TOKEN|SECRET|PASSWORD|_PASS|KEY)=[\"']?{_VALUE}", "secret"),
        (
            r"(?i)(?<![\w-])token[\"']?\s?[=:]\s?[\"']?(?=[^\s\"']{0,64}\d)"
            r"(?P<value>[\w./+=-]{16,4096})",
            "token",
        ),
    )
)
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?"
    r"(?:(?P<end>-----END [A-Z ]{0,40}PRIVATE KEY-----)|(?=\r?\n?\Z))"
)
_SECRET_NAME = re.compile(
    rf"(?i){_NAME}|(?:^|_)(?:token\d*|secret|pass|passphrase|pat|creds?|keys?|auth|jwt|webhook)$"
    r"|_(?:pwd|pw)$"
)


def _without(match: re.Match[str], kind: str) -> str:
    at = match.start("value")
    if "[redacted" in match.string[max(at - 1, 0) : at + 9]:
        return match[0]
    start, end = match.start("value") - match.start(), match.end("value") - match.start()
    return f"{match[0][:start]}[redacted {kind}]{match[0][end:]}"


class Redactor:
    """Takes the secrets out of the lines of one text, called with each line in turn.

    Of a private key block each line becomes ``[redacted private key]`` alone.

    Parameters
    ----------
    known : iterable of str
        Values known to be secret (see `secret_values`), taken out wherever they stand.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = sorted({value for value in known if len(value) >= 6}, key=len, reverse=True)
        self._in_key = False

    def __call__(self, line: str) -> str:
        """The line without secrets; what ends it is kept."""
        for value in self._known:
            line = line.replace(value, "[redacted secret]")
        if self._in_key:
            line = f"-----BEGIN PRIVATE KEY-----{line}"
        blocks = [*_KEY_BLOCK.finditer(line)]
        self._in_key = bool(blocks) and not blocks[-1]["end"]
        line = _KEY_BLOCK.sub("[redacted private key]", line)
        for pattern, kind in _RULES if _GATE.search(line) else ():
            line = pattern.sub(partial(_without, kind=kind), line)
        return line


def redact(text: str, known: Iterable[str] = ()) -> str:
    """A text of any number of lines without secrets.

    Examples
    --------
    >>> redact("HF_TOKEN=abcdef123456 vllm serve")
    'HF_TOKEN=[redacted secret] vllm serve'
    """
    return "".join(map(Redactor(known), text.splitlines(keepends=True)))


def redact_command(command: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """A command line without secrets, whether ``--name=value`` or ``--name value``."""
    shown: list[str] = []
    before = ""
    for word in map(str, command):
        shown.append(redact(f"{before} {word}", known).removeprefix(f"{before} "))
        before = word if word.startswith("-") and "=" not in word else ""
    return shown


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with the values of those that are secret by name or content hidden."""
    return {
        name: "[redacted secret]" if value and _SECRET_NAME.search(name) else redact(value)
        for name, value in environment.items()
    }


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """The values of the variables that are secret by their name.

    Also as JSON, Python and a URL write them, and each line of one that has several.
    """
    values = [value for name, value in environment.items() if _SECRET_NAME.search(name)]
    # The rim of a key is the same for all keys, by which they are found.
    lines = [one for value in values for one in value.splitlines() if one[:5] != "-----"]
    ways = (str, lambda text: json.dumps(text)[1:-1], lambda text: repr(text)[1:-1])
    ways += (lambda text: quote(text, safe=""),)
    return [*dict.fromkeys(way(one) for way in ways for one in (*values, *lines) if one)]
