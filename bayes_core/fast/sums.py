"""The server's sums in C, which the order of the uploads leaves no trace in (see bayes_core/server/).

A part of the source of kernels.py: `EACH` and `INLINE` are defined there.
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
"""
