"""Speed, memory and bytes, side by side with what a user would pick instead.

    make bench        the quick part, about ten minutes        (python -m benchmarks)
    make bench-full   all of it, up to an hour and a half      (python -m benchmarks --full)

A benchmark is a module `benchmarks/bench_NAME.py`, found by its name, with

    TITLE = "A client step"                                    # heads its table
    def run(options: Options) -> list[Measurement]: ...        # one row each, in the order shown

`options.full` asks for the long version; `options.data_dir` is where MNIST lies. Every module runs in a process of
its own (its threads, memory and compiled code disturb nobody), is imported only there, and one that fails does not
take the others along. A package that only benchmarks need belongs to the extra `bench` of pyproject.toml.

What is compared is measured in one run, in turn (ABAB…), by `interleaved`: the machine may be busy, and the ratios
must not care. Ratios are what counts; times are of the machine that took them.
"""
