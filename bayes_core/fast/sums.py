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

/* DeepSum.add: the same on any number of grids, each 2^33 times as fine as the one before. */
ROUNDED void tally_deep(double *sums, int64_t size, int64_t grids, const double *restrict terms, double weight,
                        double above, int64_t begin, int64_t end) {
    for (const int64_t last = end; begin < last; begin = end) {
        end = begin + BLOCK < last ? begin + BLOCK : last;
        double block[BLOCK], *restrict rest = block - begin, unit = above;
        EACH rest[i] = terms[i] * weight;
        for (int64_t k = 0; k < grids; k++, unit *= 0x1p-33) {
            double *restrict sum = sums + k * size;
            EACH {
                double rounded = (rest[i] + unit) - unit;
                sum[i] += rounded;
                rest[i] -= rounded;
            }
        }
    }
}
"""
