"""The client step in C: each number is read once, and everything that needs it is done with it.

The same formulas as in workspace.py with Adam's step in them, on rows of n numbers, from `begin` to `end`. `gated` is a
constant wherever one of the loops is called, so that each family gets loops of its own. exp, log1p and log are
polynomials (error below 2e-7), because not every system's C library has them vectorised. `-ffast-math` is not used:
q = w must give a gradient of exactly 0.
"""

SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EACH _Pragma("omp simd") for (int64_t i = begin; i < end; i++)
#define INLINE static inline __attribute__((always_inline))

INLINE float exp_negative(float x) {  /* e^x for x <= 0 */
    x = x < -87.0f ? -87.0f : x;
    float k = x * 1.44269504f + 12582912.0f;  /* 1.5 * 2^23: rounds to a whole number in the low bits */
    int32_t bits;
    memcpy(&bits, &k, 4);
    k -= 12582912.0f;
    float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    bits = (bits + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

INLINE float log1p_unit(float t) {  /* log(1 + t) for 0 <= t <= 1 */
    float p = -3.244021151e-3f;
    p = p * t + 1.985144421e-2f;
    p = p * t - 5.695950014e-2f;
    p = p * t + 1.060365142e-1f;
    p = p * t - 1.530559052e-1f;
    p = p * t + 1.967593855e-1f;
    p = p * t - 2.495413352e-1f;
    p = p * t + 3.332996240e-1f;
    p = p * t - 4.999990242e-1f;
    p = p * t + 9.999999953e-1f;
    return p * t;
}

INLINE float log_positive(float x) {
    int32_t bits, power;
    memcpy(&bits, &x, 4);
    power = (bits - 0x3f3504f3) >> 23;  /* x = m * 2^power with m between sqrt(1/2) and sqrt(2) */
    bits -= power << 23;
    float m, k = (float)power;
    memcpy(&m, &bits, 4);
    m -= 1.0f;
    float z = m * m, p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    return ((p * m * z - k * 2.12194440e-4f) - 0.5f * z) + m + k * 0.693359375f;
}

INLINE float softplus(float x) { return (x > 0 ? x : 0) + log1p_unit(exp_negative(-fabsf(x))); }

INLINE float sigmoid_over(float x, float y) {  /* sigmoid(x) / y */
    float t = exp_negative(-fabsf(x));
    return (x < 0 ? t : 1.0f) / (y * (1.0f + t));
}

typedef struct { float mu, sigma, logit; } rows;

/* What one mirrored pair adds: the gradients a and b of -log p at its two draws, by mu, sigma and logit lambda. */
INLINE rows likelihood(int gated, float a, float b, float g, float mu, float sigma, float logit, float logit_u,
                       float temperature) {
    rows r = {0, 0, 0};
    if (gated) {
        float plus = logit + logit_u, minus = logit - logit_u;
        float s = exp_negative(-fabsf(plus) / temperature), t = exp_negative(-fabsf(minus) / temperature);
        float slope_plus = s / ((1.0f + s) * (1.0f + s)), slope_minus = t / ((1.0f + t) * (1.0f + t));
        r.logit = (a * (mu + sigma * g) * slope_plus + b * (mu - sigma * g) * slope_minus) / temperature;
        a = plus > 0 ? a : 0;
        b = minus > 0 ? b : 0;
    }
    r.mu = a + b;
    r.sigma = (a - b) * g;
    return r;
}

typedef struct {  /* of one client, as bayes_core/fused.py has it: rows of n numbers */
    int64_t n;
    float *q, *w, *sigma_q, *sigma_w, *noise, *thetas, *sum, *at_theta, *at_mirror;
    float zeta, temperature;
} state;

typedef struct { float *first, *second, keep, take, size, size_third, root; } memory;  /* Adam's */

INLINE float adam(const memory *m, int64_t i, float value, float gradient, float size) {
    float first = m->first[i] + 0.1f * (gradient - m->first[i]);
    float second = m->keep * m->second[i] + m->take * (gradient * gradient);
    m->first[i] = first;
    m->second[i] = second;
    return value - size * first / (sqrtf(second) * m->root + 1e-8f);
}

#define ROWS                                                                                              \
    const int64_t n = s.n;                                                                                \
    float *restrict q = s.q, *restrict w = s.w, *restrict sigma_q = s.sigma_q, *restrict sigma_w = s.sigma_w; \
    const float *restrict noise = s.noise, *restrict a = s.at_theta, *restrict b = s.at_mirror;            \
    float *restrict sum = s.sum

INLINE void draw_(int gated, state s, int64_t begin, int64_t end) {
    ROWS;
    float *restrict thetas = s.thetas;
    EACH {
        float shift = sigma_q[i] * noise[i], plus = q[i] + shift, minus = q[i] - shift;
        thetas[i] = !gated || q[2 * n + i] + noise[n + i] > 0 ? plus : 0;
        thetas[n + i] = !gated || q[2 * n + i] - noise[n + i] > 0 ? minus : 0;
    }
}

INLINE void add_(int gated, state s, int64_t begin, int64_t end) {
    ROWS;
    EACH {
        rows r = likelihood(gated, a[i], b[i], noise[i], q[i], sigma_q[i],
                            gated ? q[2 * n + i] : 0, gated ? noise[n + i] : 0, s.temperature);
        sum[i] += r.mu;
        sum[n + i] += r.sigma;
        if (gated) sum[2 * n + i] += r.logit;
    }
}

INLINE void step_q_(int gated, int summed, state s, memory m, int64_t begin, int64_t end) {
    ROWS;
    EACH {
        float mu = q[i], rho = q[n + i], logit = gated ? q[2 * n + i] : 0;
        float sigma = sigma_q[i], spread = sigma_w[i], distance = mu - w[i];
        rows r = likelihood(gated, a[i], b[i], noise[i], mu, sigma, logit,
                            gated ? noise[n + i] : 0, s.temperature);
        if (summed) {
            r.mu += sum[i];
            r.sigma += sum[n + i];
            if (gated) r.logit += sum[2 * n + i];
        }
        float pull = s.zeta / (spread * spread);
        if (gated) {
            float t = exp_negative(-fabsf(logit)), small = t / (1.0f + t), large = 1.0f - small;
            float ratio = sigma / spread, z = distance / spread;
            float kl = 0.5f * (ratio * ratio + z * z - 1.0f) - log_positive(ratio);
            r.logit += s.zeta * small * large * (logit - w[2 * n + i] + kl);
            q[2 * n + i] = adam(&m, 2 * n + i, logit, r.logit, m.size_third);
            pull *= logit < 0 ? small : large;
        }
        r.mu += distance * pull;
        r.sigma = (r.sigma * sigma + (sigma - spread) * (sigma + spread) * pull) * sigmoid_over(rho, sigma);
        q[i] = adam(&m, i, mu, r.mu, m.size);
        q[n + i] = rho = adam(&m, n + i, rho, r.sigma, m.size);
        sigma_q[i] = softplus(rho);
    }
}

INLINE void step_w_(int gated, state s, memory m, int64_t begin, int64_t end) {
    ROWS;
    EACH {
        float mu = w[i], rho = w[n + i], sigma = sigma_w[i], spread = sigma_q[i], distance = mu - q[i];
        float precision = 1.0f / (sigma * sigma);
        if (gated) {
            float on = sigmoid_over(q[2 * n + i], 1.0f), logit = w[2 * n + i];
            float by_logit = sigmoid_over(logit, 1.0f) - on;
            w[2 * n + i] = adam(&m, 2 * n + i, logit, by_logit, m.size_third);
            precision *= on;
        }
        float by_sigma = ((sigma - spread) * (sigma + spread) - distance * distance) * precision;
        w[i] = adam(&m, i, mu, distance * precision, m.size);
        w[n + i] = rho = adam(&m, n + i, rho, by_sigma * sigmoid_over(rho, sigma), m.size);
        sigma_w[i] = softplus(rho);
    }
}

void spread(const state *s, int64_t begin, int64_t end) {
    EACH {
        s->sigma_q[i] = softplus(s->q[s->n + i]);
        s->sigma_w[i] = softplus(s->w[s->n + i]);
    }
}

void draw(const state *s, int gated, int64_t begin, int64_t end) {
    gated ? draw_(1, *s, begin, end) : draw_(0, *s, begin, end);
}

void add(const state *s, int gated, int64_t begin, int64_t end) {
    gated ? add_(1, *s, begin, end) : add_(0, *s, begin, end);
}

void step_q(const state *s, const memory *m, int gated, int summed, int64_t begin, int64_t end) {
    if (gated) {
        summed ? step_q_(1, 1, *s, *m, begin, end) : step_q_(1, 0, *s, *m, begin, end);
    } else {
        summed ? step_q_(0, 1, *s, *m, begin, end) : step_q_(0, 0, *s, *m, begin, end);
    }
}

void step_w(const state *s, const memory *m, int gated, int64_t begin, int64_t end) {
    gated ? step_w_(1, *s, *m, begin, end) : step_w_(0, *s, *m, begin, end);
}
"""
