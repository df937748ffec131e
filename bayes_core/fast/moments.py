"""The sums and the last step of Moments (bayes_core/server/moments.py) in C.

A part of the source of kernels.py, after sums.py. A part of the numbers is done at a time: its sums stay in the first
cache for all the uploads, and in registers for some of them.
"""

HELD = 16  # uploads that are added in one go, at most: of more, what is left of their terms would leave a grid's range
# Adding and taking away 1.5·2^k rounds a float64 to a multiple of 2^(k−52), and so does adding to a sum of about that.
EXPONENTS = (43, 10, -38, -86)
GRIDS = tuple(1.5 * 2.0**k for k in EXPONENTS)
STEPS = tuple(2.0 ** (k - 52) for k in EXPONENTS)
LEAST = 1e-22  # of a variance
ROUNDING = 2.0**-48  # of a difference of two float64 squares, which each take a few roundings


def listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(number.hex() for number in numbers)


MOMENTS = (
    rf"""
#define HELD {HELD}
#define LEAST {LEAST.hex()}
#define ROUNDING {ROUNDING.hex()}
static const double GRIDS[] = {{{listed(GRIDS)}}}, STEPS[] = {{{listed(STEPS)}}};
"""
    + r"""
#define PART 512
#define GROUP 2  /* uploads at a time in registers */
#define NUMBERS _Pragma("omp simd") for (int64_t i = 0; i < count; i++)
#define NUMBERS_FINDING _Pragma("omp simd reduction(+:found)") for (int64_t i = 0; i < count; i++)
#define ALL(k, from, to) _Pragma("GCC unroll 4") for (int k = from; k < to; k++)

/* a + b in the processor's units for products, which have nothing to do while those for sums are busy. One rounding,
   so the same bits; `one` must be a number that the compiler does not know. */
#ifdef __FMA__
#define PLUS(a, b) __builtin_fma(a, one, b)
#else
#define PLUS(a, b) ((a) + (b))
#endif

typedef struct {
    const float *mu[HELD], *sigma[HELD], *lambda[HELD], *origin;
    double sums[4][4][PART + 24];  /* of each kind, on each grid */
    double weights[HELD], off, one;
} part;

static const float NONE[PART];

/* Rounded to the sum's grid, as long as the sum is between 1 and 2 times its power of two; gives what is left. */
INLINE double put(double *sum, double term, double one) {
    double now = PLUS(term, *sum), taken = now - *sum;
    *sum = now;
    return term - taken;
}

INLINE double odd(double x) {  /* never halfway between two numbers of a grid, where the sum would decide */
    int64_t bits;
    memcpy(&bits, &x, 8);
    bits |= 1;
    memcpy(&x, &bits, 8);
    return x;
}

/* `GROUP` uploads from the `first` on, on the grids from `top` on. A weight of 1 need not be multiplied with. */
INLINE void put_group(const int gated, const int top, const int even, part *p, int64_t first, int64_t count) {
    const int kinds = 3 + gated, last = 2 + gated;
    const float *restrict origin = p->origin;
    const double one = p->one, off = p->off;
    NUMBERS {
        double s[4][4];
        ALL(j, 0, kinds) ALL(k, top, last + 1) s[j][k] = p->sums[j][k][i];
        ALL(c, 0, GROUP) {
            double distance = (double)p->mu[first + c][i] - (double)origin[i];
            double sigma = (double)p->sigma[first + c][i], weight = even ? 1.0 : p->weights[first + c];
            double gate = gated ? (double)p->lambda[first + c][i] : 1.0;
            if (gated) gate = gate < off ? off : gate;
            double terms[4] = {distance * gate * weight, distance * distance * gate * weight,
                               sigma * sigma * gate * weight, gate * weight};
            ALL(j, 0, kinds) {
                double rest = terms[j];
                ALL(k, top, last) rest = put(&s[j][k], rest, one);
                s[j][last] = PLUS(odd(rest), s[j][last]);
            }
        }
        ALL(j, 0, kinds) ALL(k, top, last + 1) p->sums[j][k][i] = s[j][k];
    }
}

INLINE void put_all(const int gated, const int top, const int even, part *p, int64_t uploads, int64_t count) {
    for (int j = 0; j < 3 + gated; j++)
        for (int k = top; k < 3 + gated; k++) NUMBERS p->sums[j][k][i] = GRIDS[k];
    for (int64_t c = 0; c < uploads; c += GROUP) put_group(gated, top, even, p, c, count);
}

/* Whether a sum without the first grid may have left the range of the second. Squares, variances and gates only grow;
   distances are below 64 each, where the sums of squares and of gates (or weights) are. */
INLINE int64_t left(const int gated, const part *p, int64_t count) {
    int64_t found = 0;
    const double near = GRIDS[1] + 64, far = GRIDS[1] + 512;
    NUMBERS_FINDING {
        found += !(p->sums[1][1][i] < near) | !(p->sums[2][1][i] < far);
        if (gated) found += !(p->sums[3][1][i] < near);
    }
    return found;
}

/* What has been added up into the totals, of each kind on each grid; gives whether the first grid was touched. */
INLINE int64_t carry(const int gated, const int top, const part *p, double *totals, int64_t size, int64_t begin,
                     int64_t count) {
    const int kinds = 3 + gated, last = 2 + gated;
    int64_t touched = !top;
    for (int j = 0; j < kinds; j++) {
        double *restrict total = totals + j * size + begin;
        const int64_t grid = kinds * size;
        int64_t found = 0;
        NUMBERS_FINDING {
            double over = 0;
            _Pragma("GCC unroll 4") for (int k = last; k > 1; k--) {
                double now = (total[k * grid + i] + (p->sums[j][k][i] - GRIDS[k])) + over;
                over = (now + GRIDS[k - 1]) - GRIDS[k - 1];
                total[k * grid + i] = now - over;
            }
            double now = total[grid + i] + ((p->sums[j][1][i] - GRIDS[1]) + over);
            total[grid + i] = now;
            found += !(fabs(now) < 512);
        }
        if (!top) NUMBERS total[i] += p->sums[j][0][i] - GRIDS[0];
        if (found) NUMBERS {
            double now = total[grid + i], over = (now + GRIDS[0]) - GRIDS[0];
            total[grid + i] = now - over;
            total[i] += over;
        }
        touched += found;
    }
    return touched;
}

INLINE int64_t put_part(const int gated, const int even, part *p, int64_t uploads, int narrow, double *totals,
                        int64_t size, int64_t begin, int64_t count) {
    if (narrow) put_all(gated, 1, even, p, uploads, count);
    if (narrow && !left(gated, p, count)) return carry(gated, 1, p, totals, size, begin, count);
    put_all(gated, 0, 0, p, uploads, count);
    return carry(gated, 0, p, totals, size, begin, count);
}

/* Moments._hold: mu, sigma and, with gates, lambda of an upload. */
ROUNDED void hold(float *restrict held, const float *restrict upload, int64_t size, int64_t rows, int64_t first,
                  int64_t last) {
    float t[PART];
    for (int64_t begin = first; begin < last; begin += PART) {
        const int64_t count = last - begin < PART ? last - begin : PART;
        const float *restrict mu = upload + begin, *restrict rho = mu + size, *restrict lambda = rho + size;
        float *restrict out = held + begin, *restrict sigma = out + size, *restrict gates = sigma + size;
        NUMBERS {  /* two loops: the processor works on several turns of a short one */
            t[i] = exp_below(-fabsf(rho[i]));
            out[i] = mu[i];
        }
        NUMBERS sigma[i] = (rho[i] > 0 ? rho[i] : 0) + log1p_above(t[i]);
        if (rows > 2) NUMBERS gates[i] = lambda[i];
    }
}

/* Moments._flush: `uploads` of the rows mu, sigma and, with gates, lambda, into the totals of lambda times the distance
   from the origin, its square and the variance, and of lambda. Gives whether the first grid was touched. */
#define PUT(name, gated)                                                                                       \
    ROUNDED int64_t name(double *totals, int64_t size, const float *origin, const float *held, int64_t uploads, \
                         const double *weights, double off, double one, int64_t first, int64_t last) {         \
        part p = {.off = off, .one = one};                                                                     \
        double sum = 0;                                                                                        \
        int64_t touched = 0, even = !gated;                                                                    \
        for (int64_t c = 0; c < uploads; c++) {                                                                \
            sum += p.weights[c] = weights[c];                                                                  \
            even &= weights[c] == 1;                                                                           \
        }                                                                                                      \
        const int narrow = gated || sum < 64;                                                                  \
        for (int64_t begin = first; begin < last; begin += PART) {                                             \
            p.origin = origin + begin;                                                                         \
            for (int64_t c = 0; c < HELD; c++) {  /* those that fill a group add nothing */                    \
                p.mu[c] = c < uploads ? held + c * (2 + gated) * size + begin : p.origin;                      \
                p.sigma[c] = c < uploads ? p.mu[c] + size : NONE;                                              \
                p.lambda[c] = c < uploads ? p.sigma[c] + size : NONE;                                          \
            }                                                                                                  \
            int64_t count = last - begin < PART ? last - begin : PART;                                         \
            touched += even ? put_part(gated, !gated, &p, uploads, narrow, totals, size, begin, count)         \
                            : put_part(gated, 0, &p, uploads, narrow, totals, size, begin, count);             \
        }                                                                                                      \
        return touched;                                                                                        \
    }

PUT(put_moments, 0)
PUT(put_gated_moments, 1)

/* A sum on all its grids as one float64, which depends on nothing but their exact sum. */
INLINE double value(const int gated, const int wide, const double *total, int64_t grid) {
    const int top = !wide;  /* without the first grid's part, the second's is below 2^10 and has all its digits */
    double low[4], found;
    ALL(k, top, 3 + gated) low[k] = total[k * grid];
    _Pragma("GCC unroll 4") for (int k = 2 + gated; k > top; k--) {
        double over = floor(low[k] * (1 / STEPS[k - 1])) * STEPS[k - 1];
        low[k] -= over;
        low[k - 1] += over;
    }
    found = low[top];
    ALL(k, top + 1, 3 + gated) found += low[k];
    return found;
}

/* Moments._finish */
INLINE void finish(const int gated, const int wide, float *restrict out, const double *total, int64_t size,
                   const float *restrict origin, double weight, int64_t count) {
    const int64_t grid = (3 + gated) * size;
    float sigma[PART], *restrict rho = out + size, *restrict lambda = rho + size;
    NUMBERS {
        double gates = gated ? value(gated, wide, total + 3 * size + i, grid) : weight;
        double each = 1 / gates, shift = value(gated, wide, total + i, grid) * each;
        double square = value(gated, wide, total + size + i, grid) * each;
        double variance = value(gated, wide, total + 2 * size + i, grid) * each;
        double spread = square - shift * shift;
        variance += spread < ROUNDING * square ? 0 : spread;
        out[i] = (float)(shift + (double)origin[i]);
        sigma[i] = (float)sqrt(variance < LEAST ? LEAST : variance);
        if (gated) lambda[i] = (float)(gates / weight);
    }
    NUMBERS rho[i] = inverse_softplus(sigma[i]);
}

#define FINISH(name, gated)                                                                                    \
    ROUNDED void name(float *out, const double *totals, int64_t size, const float *origin, double weight,      \
                      int64_t wide, int64_t first, int64_t last) {                                             \
        for (int64_t begin = first; begin < last; begin += PART) {                                             \
            const int64_t count = last - begin < PART ? last - begin : PART;                                   \
            if (wide) finish(gated, 1, out + begin, totals + begin, size, origin + begin, weight, count);      \
            else finish(gated, 0, out + begin, totals + begin, size, origin + begin, weight, count);           \
        }                                                                                                      \
    }

FINISH(finish_moments, 0)
FINISH(finish_gated_moments, 1)
"""
)
