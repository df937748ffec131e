"""softplus and its inverse in float32, of sums, products, quotients, comparisons and bits alone: in C and in PyTorch.

Each of these operations has one right result, so both give the same bits, on any processor and in blocks of any size;
exp and log of libraries differ from machine to machine. Errors: two units of the last place, from e^-104 on, where
float32 ends; of the inverse as much in σ.

e^x = 2^k·(1 + r + r²·P(r)) with k whole and |r| below log(2)/2; log(1 + t) = t − s·(t − z·R(z)) with s = t/(2 + t) and
z = s². P and R are polynomials with the least possible error, 3e-9.
"""

import torch
from torch import Tensor

LOWEST = -104.0  # e^x is 0 in float32 below
PER_LOG2, WHOLE = 1.4426950216293335, 12582912.0  # adding 1.5·2^23 rounds to a whole number, in the low bits
LOG2, LOG2_REST = (
    0.693359375,
    -2.1219444170128554e-4,
)  # their sum is log 2; k times the first has no rounding error
P = (0.5, 0.166665181517601, 0.04166620597243309, 0.008368917740881443, 0.001395053812302649)
R = (0.6666641235351562, 0.4002170562744141, 0.27999010682106018, 0.28025147318840027)
HIGHER = 64  # powers of two are found 2^64 times too large, so that the smallest ones are whole, too
ROOT = 0x3F3504F3  # the bits of √½

SOFTPLUS = rf"""
/* bayes_core/fast/softplus.py. For x <= 0: e^x - 1 = rest * power + (power - 1). */
INLINE float exp_rest(float x, float *power) {{
    x = x < {LOWEST}f ? {LOWEST}f : x;
    float k = x * {PER_LOG2}f + {WHOLE}f;
    uint32_t bits;
    memcpy(&bits, &k, 4);
    k -= {WHOLE}f;
    float r = (x - k * {LOG2}f) - k * {LOG2_REST}f, r2 = r * r;
    float p = (({P[4]}f * r2 + ({P[3]}f * r + {P[2]}f)) * r2 + ({P[1]}f * r + {P[0]}f)) * r2;
    bits = (bits + {127 + HIGHER}u) << 23;
    memcpy(power, &bits, 4);
    return p + r;
}}

INLINE float exp_below(float x) {{
    float power, rest = exp_rest(x, &power);
    return ((rest + 1.0f) * power) * 0x1p-{HIGHER}f;
}}

INLINE float log1p_above(float t) {{  /* for t between -0.3 and 1 */
    float s = t / (t + 2.0f), z = s * s;
    float r = (({R[3]}f * z + {R[2]}f) * (z * z) + ({R[1]}f * z + {R[0]}f)) * z;
    return t - (t - r) * s;
}}

INLINE float inverse_softplus(float sigma) {{
    float power, rest = exp_rest(-sigma, &power);
    power *= 0x1p-{HIGHER}f;
    float y = (1.0f - power) - rest * power, m;  /* 1 - e^-sigma */
    int32_t bits, k;
    memcpy(&bits, &y, 4);
    k = (bits - {ROOT}) >> 23;
    bits -= (int32_t)((uint32_t)k << 23);
    memcpy(&m, &bits, 4);
    float whole = (float)k;
    return ((log1p_above(m - 1.0f) + whole * {LOG2_REST}f) + whole * {LOG2}f) + sigma;
}}
"""


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) of a float32 tensor."""
    rest, power = _exp_rest(-x.abs())
    t = (rest + 1.0) * power * 2.0**-HIGHER
    return x.clamp_min(0.0) + _log1p(t)


def inverse_softplus(sigma: Tensor) -> Tensor:
    """ρ with softplus(ρ) = σ, of a float32 tensor of numbers above 1e-30."""
    rest, power = _exp_rest(-sigma)
    power = power * 2.0**-HIGHER
    bits = ((1.0 - power) - rest * power).view(torch.int32)
    k = (bits - ROOT) >> 23
    m = (bits - (k << 23)).view(torch.float32)
    whole = k.float()
    return ((_log1p(m - 1.0) + whole * LOG2_REST) + whole * LOG2) + sigma


def _exp_rest(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clamp_min(LOWEST)
    k = x * PER_LOG2 + WHOLE
    bits = k.view(torch.int32)
    k = k - WHOLE
    r = (x - k * LOG2) - k * LOG2_REST
    r2 = r * r
    p = ((P[4] * r2 + (P[3] * r + P[2])) * r2 + (P[1] * r + P[0])) * r2
    return p + r, ((bits + (127 + HIGHER)) << 23).view(torch.float32)


def _log1p(t: Tensor) -> Tensor:
    s = t / (t + 2.0)
    z = s * s
    r = ((R[3] * z + R[2]) * (z * z) + (R[1] * z + R[0])) * z
    return t - (t - r) * s
