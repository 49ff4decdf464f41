from penstock_lab.bench import packets


def test_the_benchmark_measures_every_figure() -> None:
    figures = packets.run(quick=True)
    times = {name: value for name, value in figures.items() if name.endswith("_ns")}
    assert len(times) == 13
    assert all(value > 0 for value in times.values())
    assert figures["reader_small_mb_per_s"] > 0
    assert figures["reader_16k_mb_per_s"] > 0
