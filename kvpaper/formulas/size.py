"""How many bytes a cached prefix takes."""

import numpy as np

from kvpaper.formulas._domain import require


def kv_bytes_per_token(layers, kv_heads, head_dim, element_bytes):
    r"""Bytes that one token adds to the cache of full-attention layers [B/token].

    Multi-head, grouped-query and multi-query attention; 2 counts keys and values. The head
    dimension is read from the model's configuration: it need not be hidden size over heads.
    Source: the paper's example is about 130,000 B/token. Head sharing: Ainslie et al. 2023,
    arXiv:2305.13245.

    >>> kv_bytes_per_token(layers=32, kv_heads=8, head_dim=128, element_bytes=2)
    131072

    Equation
    --------
    s = 2\, L\, n_{\text{kv}}\, d\, e

    Parameters
    ----------
    layers, kv_heads, head_dim : float or array [1]
    element_bytes : float or array [B]
    """
    return 2 * layers * kv_heads * head_dim * element_bytes


def mla_kv_bytes_per_token(layers, kv_lora_rank, qk_rope_head_dim, element_bytes):
    r"""Bytes that one token adds to the cache under multi-head latent attention [B/token].

    One latent and one rotary key per layer serve all heads, so neither heads nor a factor 2 enter,
    and tensor parallelism copies the cache to every rank.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1. The value of DeepSeek-V3: Zhao et al., ISCA
    2025, doi:10.1145/3695053.3731412, Table 1 (70.272 KB).

    >>> mla_kv_bytes_per_token(61, 512, 64, 2)
    70272

    Equation
    --------
    s_{\text{MLA}} = L \left(d_{\text{c}} + d_{\text{rope}}\right) e

    Parameters
    ----------
    layers, kv_lora_rank, qk_rope_head_dim : float or array [1]
    element_bytes : float or array [B]
    """
    return layers * (kv_lora_rank + qk_rope_head_dim) * element_bytes


def kv_bytes(
    tokens,
    layers,
    elements_per_token,
    window_tokens,
    element_bytes,
    state_bytes=0.0,
    resume_points=1,
):
    r"""Bytes of the cache of one sequence, summed over groups of like layers [B].

    A number for a group argument means one group. One resume point sizes a running sequence. A
    stored prefix can be resumed only where its window and its recurrent state were kept: each of
    the evenly spaced resume points keeps both. An engine that stores window layers in full has an
    infinite window here. Raises InputError if ``resume_points`` is below 1.
    Source: derived here: a window layer stops growing, a recurrent layer keeps one state per
    sequence.

    gpt-oss-120b at 8,192 tokens: 18 full layers and 18 with a window of 128 tokens.

    >>> layers, windows = np.array([18, 18]), np.array([np.inf, 128])
    >>> print(kv_bytes(8192, layers, 2 * 8 * 64, windows, 2))
    306708480.0

    Equation
    --------
    \begin{aligned}
    S ={}& \sum_{\text{groups}} L\, m\, e\, \min\left(n, k w\right) \\
    &{}+ k S_{\text{state}}
    \end{aligned}

    Parameters
    ----------
    tokens : float or array [token]
    layers : array [1], groups on the last axis
    elements_per_token : array [1/token], groups on the last axis
    window_tokens : array [token], groups on the last axis; ``inf`` where every token is kept
    element_bytes : array [B], groups on the last axis
    state_bytes : float or array [B], default 0
    resume_points : float or array [1], default 1
    """
    expected = "at least one point at which the prefix can be resumed"
    require("resume_points", resume_points, expected, least=1)
    points = np.asarray(resume_points)
    kept_tokens = np.minimum(np.asarray(tokens)[..., None], points[..., None] * window_tokens)
    grown = np.sum(layers * elements_per_token * element_bytes * kept_tokens, axis=-1)
    return grown + resume_points * state_bytes


def heads_per_rank(kv_heads, tensor_parallel):
    r"""Key-value heads that each tensor-parallel rank holds [1].

    With more ranks than heads the cache is copied: all ranks together then hold more than one
    logical copy. A tier outside the GPUs holds one.
    Source: derived here. Qwen3-235B-A22B keeps 48,128 B per token and rank at 4 ranks and at 8.

    >>> print(heads_per_rank(4, np.array([2, 4, 8])))
    [2. 1. 1.]

    Equation
    --------
    n_{\text{rank}} = \left\lceil \frac{n_{\text{kv}}}{N_{\text{TP}}} \right\rceil

    Parameters
    ----------
    kv_heads, tensor_parallel : float or array [1]
    """
    return np.ceil(kv_heads / tensor_parallel)


def blocks(tokens, block_tokens):
    r"""Cache blocks that a sequence occupies, the last one perhaps in part [1].

    Source: paged allocation: Kwon et al., SOSP 2023, arXiv:2309.06180.

    >>> print(blocks(1025, 512))
    3.0

    Equation
    --------
    N_{\text{block}} = \left\lceil \frac{n}{n_{\text{block}}} \right\rceil

    Parameters
    ----------
    tokens, block_tokens : float or array [token]
    """
    return np.ceil(tokens / block_tokens)


def prefix_tokens(kv_bytes, kv_bytes_per_token):
    r"""Whole tokens whose cache fits in a number of bytes [token].

    Every layer grows with every token; no rounding to blocks.
    Source: the paper's example: 1 GB is a prefix of about 8,000 tokens.

    >>> print(prefix_tokens(1e9, 131072))
    7629.0

    Equation
    --------
    n_{\text{fit}} = \left\lfloor \frac{S}{s} \right\rfloor

    Parameters
    ----------
    kv_bytes : float or array [B]
    kv_bytes_per_token : float or array [B/token]
    """
    return np.floor(kv_bytes / kv_bytes_per_token)
