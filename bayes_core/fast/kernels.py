"""The client step in C: each number is read once, and everything that needs it is done with it.

The step has the formulas of the families with Adam's step in them, on rows of n numbers, from `begin` to `end`.
Switches such as `gated` are constants wherever one of the loops is called, so that each case gets a loop of its own.
exp, expm1, log1p and log are polynomials (error below 2e-7), because not every system's C library has them vectorised.
`-ffast-math` is not used: q = w must give a gradient of exactly 0, and the sums of sums.py take away what they added.
"""

from bayes_core.fast.moments import MOMENTS
from bayes_core.fast.softplus import SOFTPLUS
from bayes_core.fast.sums import SUMS

SOURCE = (
    r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EACH _Pragma("omp simd") for (int64_t i = begin; i < end; i++)
#define BLOCK 256
#define INLINE static inline __attribute__((always_inline))

/* For x <= 0: e^x = (rest + 1) * power, with all digits of the rest near 0. */
INLINE float exp_parts(float x, float *power) {
    x = x < -87.0f ? -87.0f : x;
    float k = x * 1.44269504f + 12582912.0f;  /* 1.5 * 2^23: rounds to a whole number in the low bits */
    int32_t bits;
    memcpy(&bits, &k, 4);
    k -= 12582912.0f;
    float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float r2 = r * r;
    float p = (1.3981999507e-3f + 1.9875691500e-4f * r) * r2 + (4.1665795894e-2f + 8.3334519073e-3f * r);
    p = p * r2 + (5.0000001201e-1f + 1.6666665459e-1f * r);
    bits = (bits + 127) << 23;
    memcpy(power, &bits, 4);
    return p * r2 + r;
}

INLINE float exp_negative(float x) {  /* e^x for x <= 0 */
    float power, rest = exp_parts(x, &power);
    return (rest + 1.0f) * power;
}

INLINE float log1p_unit(float t) {  /* log(1 + t) for 0 <= t <= 1 */
    float t2 = t * t, t4 = t2 * t2;
    float low = (9.999999953e-1f - 4.999990242e-1f * t) + (3.332996240e-1f - 2.495413352e-1f * t) * t2;
    float middle = (1.967593855e-1f - 1.530559052e-1f * t) + (1.060365142e-1f - 5.695950014e-2f * t) * t2;
    float high = 1.985144421e-2f - 3.244021151e-3f * t;
    return (low + (middle + high * t4) * t4) * t;
}

INLINE float log_positive(float x) {
    int32_t bits, power;
    memcpy(&bits, &x, 4);
    power = (bits - 0x3f3504f3) >> 23;  /* x = m * 2^power with m between sqrt(1/2) and sqrt(2) */
    bits -= power << 23;
    float m, k = (float)power;
    memcpy(&m, &bits, 4);
    m -= 1.0f;
    float z = m * m, z2 = z * z;
    float low = (3.3333331174e-1f - 2.4999993993e-1f * m) + (2.0000714765e-1f - 1.6668057665e-1f * m) * z;
    float high = (1.4249322787e-1f - 1.2420140846e-1f * m) + (1.1676998740e-1f - 1.1514610310e-1f * m) * z;
    float p = low + (high + 7.0376836292e-2f * z2) * z2;
    return ((p * m * z - k * 2.12194440e-4f) - 0.5f * z) + m + k * 0.693359375f;
}

INLINE float softplus(float x) { return (x > 0 ? x : 0) + log1p_unit(exp_negative(-fabsf(x))); }

/* 1/a and 1/b; equal for equal a and b. One division for two. */
INLINE void inverses(float a, float b, float *one, float *other) {
    float inverse = 1.0f / (a * b);
    *one = inverse * b;
    *other = inverse * a;
}

/* sigmoid of x and of y */
INLINE void sigmoids(float x, float y, float *one, float *other) {
    float s = exp_negative(-fabsf(x)), t = exp_negative(-fabsf(y));
    inverses(1.0f + s, 1.0f + t, one, other);
    *one *= x < 0 ? s : 1.0f;
    *other *= y < 0 ? t : 1.0f;
}

typedef struct { float mu, sigma, logit; } rows;

/* What one mirrored pair adds: the gradients a and b of -log p at its two draws, by mu, sigma and logit lambda. */
INLINE rows likelihood(int gated, float a, float b, float g, float mu, float sigma, float logit, float logit_u,
                       float coldness) {
    rows r = {0, 0, 0};
    if (gated) {
        float plus = logit + logit_u, minus = logit - logit_u, one, other;
        float s = exp_negative(-fabsf(plus) * coldness), t = exp_negative(-fabsf(minus) * coldness);
        inverses(1.0f + s, 1.0f + t, &one, &other);
        r.logit = (a * (mu + sigma * g) * (s * one * one) + b * (mu - sigma * g) * (t * other * other)) * coldness;
        a = plus > 0 ? a : 0;
        b = minus > 0 ? b : 0;
    }
    r.mu = a + b;
    r.sigma = (a - b) * g;
    return r;
}

typedef struct {  /* of one client, as bayes_core/fast/fused.py has it: rows of n numbers */
    int64_t n;
    float *q, *w, *sigma_q, *noise, *thetas, *sum, *at_theta, *at_mirror;
    float zeta, coldness;  /* 1/temperature */
} state;

typedef struct { float *first, *second, keep, take, size, size_third, root; } adam_state;

/* Takes in the gradient; gives the numerator and the denominator of the step. */
INLINE void remember(const adam_state *m, int64_t i, float gradient, float size, float *step, float *scale) {
    float first = m->first[i] + 0.1f * (gradient - m->first[i]);
    float second = m->keep * m->second[i] + m->take * (gradient * gradient);
    m->first[i] = first;
    m->second[i] = second;
    *step = size * first;
    *scale = sqrtf(second) * m->root + 1e-8f;
}

/* Adam's steps on mu and rho. */
INLINE void adam(const adam_state *m, int64_t n, int64_t i, float *v, float gradient_mu, float gradient_rho) {
    float by_mu, by_rho, scale_mu, scale_rho, one, other;
    remember(m, i, gradient_mu, m->size, &by_mu, &scale_mu);
    remember(m, n + i, gradient_rho, m->size, &by_rho, &scale_rho);
    inverses(scale_mu, scale_rho, &one, &other);
    v[i] -= by_mu * one;
    v[n + i] -= by_rho * other;
}

/* And on logit lambda. */
INLINE void adam_third(const adam_state *m, int64_t n, int64_t i, float *v, float gradient) {
    float by, scale;
    remember(m, 2 * n + i, gradient, m->size_third, &by, &scale);
    v[2 * n + i] -= by / scale;
}

#define ROWS                                                                                    \
    const int64_t n = s.n;                                                                      \
    float *restrict q = s.q, *restrict w = s.w, *restrict sigma_q = s.sigma_q;                  \
    float *restrict noise = s.noise, *restrict sum = s.sum;                                     \
    const float *restrict a = s.at_theta, *restrict b = s.at_mirror

INLINE void draw_(int gated, state s, int64_t begin, int64_t end) {
    ROWS;
    float *restrict thetas = s.thetas;
    EACH {
        float shift = sigma_q[i] * noise[i], plus = q[i] + shift, minus = q[i] - shift;
        if (gated) {  /* its noise comes as u, uniform, and stays as logit u */
            float u = noise[n + i], logit_u = log_positive(u / (1.0f - u));
            noise[n + i] = logit_u;
            plus = q[2 * n + i] + logit_u > 0 ? plus : 0;
            minus = q[2 * n + i] - logit_u > 0 ? minus : 0;
        }
        thetas[i] = plus;
        thetas[n + i] = minus;
    }
}

INLINE void add_(int gated, state s, int64_t begin, int64_t end) {
    ROWS;
    EACH {
        rows r = likelihood(gated, a[i], b[i], noise[i], q[i], sigma_q[i],
                            gated ? q[2 * n + i] : 0, gated ? noise[n + i] : 0, s.coldness);
        sum[i] += r.mu;
        sum[n + i] += r.sigma;
        if (gated) sum[2 * n + i] += r.logit;
    }
}

/* A step on q and, where `both`, then one on w, of at most BLOCK numbers: in a few short loops, of which a processor
   works on several turns at a time, over memory that stays in its first cache. */
INLINE void step_(int gated, int summed, int both, state s, adam_state of_q, adam_state of_w,
                  int64_t begin, int64_t end) {
    ROWS;
    float blocks[7][BLOCK];  /* indexed from `begin` on */
    float *restrict by_mu = blocks[0] - begin, *restrict by_sigma = blocks[1] - begin;
    float *restrict by_logit = blocks[2] - begin, *restrict sigma_w = blocks[3] - begin;
    float *restrict slope_q = blocks[4] - begin, *restrict slope_w = blocks[5] - begin;
    float *restrict on = blocks[6] - begin;  /* lambda of q */
    EACH {
        rows r = likelihood(gated, a[i], b[i], noise[i], q[i], sigma_q[i], gated ? q[2 * n + i] : 0,
                            gated ? noise[n + i] : 0, s.coldness);
        by_mu[i] = summed ? r.mu + sum[i] : r.mu;
        by_sigma[i] = summed ? r.sigma + sum[n + i] : r.sigma;
        if (gated) by_logit[i] = summed ? r.logit + sum[2 * n + i] : r.logit;
    }
    EACH {
        float rho_q = q[n + i], rho_w = w[n + i];
        sigmoids(rho_q, rho_w, &slope_q[i], &slope_w[i]);
        sigma_w[i] = softplus(rho_w);
    }
    if (gated) EACH {
        float logit = q[2 * n + i], t = exp_negative(-fabsf(logit)), over, inverse;
        inverses(sigma_w[i], 1.0f + t, &over, &inverse);
        float ratio = sigma_q[i] / sigma_w[i], z = (q[i] - w[i]) * over;  /* a product might miss 1 at q = w */
        float kl = 0.5f * (ratio * ratio + z * z - 1.0f) - log_positive(ratio);
        by_logit[i] += s.zeta * (t * inverse * inverse) * (logit - w[2 * n + i] + kl);
        on[i] = logit < 0 ? t * inverse : inverse;
    }
    EACH {
        float sigma = sigma_q[i], over_sigma_q, over_sigma_w;
        inverses(sigma, sigma_w[i], &over_sigma_q, &over_sigma_w);
        float pull = s.zeta * over_sigma_w * over_sigma_w * (gated ? on[i] : 1.0f);
        float excess = (sigma - sigma_w[i]) * (sigma + sigma_w[i]) * over_sigma_q;
        adam(&of_q, n, i, q, by_mu[i] + (q[i] - w[i]) * pull, (by_sigma[i] + excess * pull) * slope_q[i]);
    }
    EACH sigma_q[i] = softplus(q[n + i]);
    if (gated) EACH adam_third(&of_q, n, i, q, by_logit[i]);
    if (!both) return;
    if (gated) EACH {
        /* lambda_w - lambda_q = sigmoid(h) sigmoid(-l) (1 - e^(l-h)) with the higher logit h and the lower l, in the
           terms of q's and of the gap: Adam would make full steps of what a plain difference has rounded. */
        float logit = q[2 * n + i], gap = w[2 * n + i] - logit, t = exp_negative(-fabsf(logit)), power, one, other;
        float rest = exp_parts(-fabsf(gap), &power), kept = rest * power + power, lost = (1.0f - power) - rest * power;
        inverses(1.0f + t, (logit < 0) == (gap < 0) ? 1.0f + t * kept : t + kept, &one, &other);
        on[i] = logit < 0 ? t * one : one;
        adam_third(&of_w, n, i, w, t * other * one * (gap < 0 ? -lost : lost));
    }
    EACH {
        float distance = w[i] - q[i], over = 1.0f / sigma_w[i], precision = over * over * (gated ? on[i] : 1.0f);
        float excess = (sigma_w[i] - sigma_q[i]) * (sigma_w[i] + sigma_q[i]) - distance * distance;
        adam(&of_w, n, i, w, distance * precision, excess * precision * over * slope_w[i]);
    }
}

void find_sigma(const state *s, int64_t begin, int64_t end) {
    EACH s->sigma_q[i] = softplus(s->q[s->n + i]);
}

void draw(const state *s, int gated, int64_t begin, int64_t end) {
    gated ? draw_(1, *s, begin, end) : draw_(0, *s, begin, end);
}

void add(const state *s, int gated, int64_t begin, int64_t end) {
    gated ? add_(1, *s, begin, end) : add_(0, *s, begin, end);
}

#define STEP(gated, summed, both) step_(gated, summed, both, *s, *of_q, *of_w, begin, end)
#define STEPS(gated) \
    if (summed) { both ? STEP(gated, 1, 1) : STEP(gated, 1, 0); } else { both ? STEP(gated, 0, 1) : STEP(gated, 0, 0); }

void step(const state *s, const adam_state *of_q, const adam_state *of_w, int gated, int summed, int both,
          int64_t begin, int64_t end) {
    for (const int64_t last = end; begin < last; begin = end) {
        end = begin + BLOCK < last ? begin + BLOCK : last;
        if (gated) { STEPS(1) } else { STEPS(0) }
    }
}
"""
    + SUMS
    + SOFTPLUS
    + MOMENTS
)
