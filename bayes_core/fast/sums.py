"""The server's sums in C, which the order of the uploads leaves no trace in (see bayes_core/server/aggregate.py).

A part of the source of kernels.py: `EACH` and `BLOCK` are defined there.
"""

SUMS = r"""
/* Products are rounded before they are added, as in PyTorch. */
#ifdef __clang__
#pragma clang fp contract(off)
#define ROUNDED
#else
#define ROUNDED __attribute__((optimize("fp-contract=off")))
#endif

/* Sum.add of bayes_core/server/aggregate.py; adding and taking away `above` and `below` rounds to its two grids. */
#define TALLY(name, type)                                                                                      \
    ROUNDED void name(double *restrict coarse, double *restrict fine, const type *restrict terms,              \
                      double weight, double above, double below, int64_t begin, int64_t end) {                 \
        EACH {                                                                                                 \
            double term = (double)terms[i] * weight, rounded = (term + above) - above;                         \
            coarse[i] += rounded;                                                                              \
            fine[i] += ((term - rounded) + below) - below;                                                     \
        }                                                                                                      \
    }

TALLY(tally, float)
TALLY(tally_wide, double)

/* a + b in the processor's units for products, which have nothing to do while those for sums are busy. One rounding,
   so the same bits; `one` must be a number that the compiler does not know. */
#ifdef __FMA__
#define PLUS(a, b) __builtin_fma(a, one, b)
#else
#define PLUS(a, b) ((a) + (b))
#endif

/* A term on grids that are each 2^33 times as fine as the one before. */
INLINE void deep(double *restrict sums, int64_t size, const int grids, int64_t i, double rest, double unit,
                 double one) {
    for (int k = 0; k < grids; k++, unit *= 0x1p-33) {
        double rounded = PLUS(rest, unit) - unit;
        sums[k * size + i] = PLUS(rounded, sums[k * size + i]);
        rest -= rounded;
    }
}

/* DeepSum.add */
ROUNDED void tally_deep(double *sums, int64_t size, int64_t grids, const double *restrict terms, double weight,
                        double above, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) deep(sums, size, grids, i, terms[i] * weight, above, 1.0);
}

/* Moments._flush: `count` uploads of the rows mu, sigma and, with gates, lambda, into the sums of lambda times the
   distance from the origin, its square and the variance, and of lambda. A block at a time, so that its sums are in
   cache for all the uploads. */
#define MOMENTS(name, rows, grids)                                                                             \
    ROUNDED void name(double *sums, int64_t size, const float *restrict origin, const float *restrict held,    \
                      int64_t count, const double *weights, double off, double above, double one,              \
                      int64_t first, int64_t last) {                                                           \
        double *square = sums + grids * size, *variance = square + grids * size;                               \
        double *gates = variance + grids * size;                                                               \
        for (int64_t begin = first, end; begin < last; begin = end) {                                          \
            end = begin + BLOCK < last ? begin + BLOCK : last;                                                 \
            for (int64_t c = 0; c < count; c++) {                                                              \
                const float *restrict mu = held + c * rows * size, *restrict sigma = mu + size;                \
                const float *restrict lambda = sigma + size;                                                   \
                double weight = weights[c];                                                                    \
                EACH {                                                                                         \
                    double gate = rows == 3 ? (double)lambda[i] : 1.0, s = (double)sigma[i];                   \
                    double distance = (double)mu[i] - (double)origin[i];                                       \
                    gate = gate < off ? off : gate;                                                            \
                    deep(sums, size, grids, i, distance * gate * weight, above, one);                          \
                    deep(square, size, grids, i, distance * distance * gate * weight, above, one);             \
                    deep(variance, size, grids, i, s * s * gate * weight, above, one);                         \
                    if (rows == 3) deep(gates, size, grids, i, gate * weight, above, one);                     \
                }                                                                                              \
            }                                                                                                  \
        }                                                                                                      \
    }

MOMENTS(tally_moments, 2, 3)
MOMENTS(tally_gated_moments, 3, 4)
"""
