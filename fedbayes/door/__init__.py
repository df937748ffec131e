"""fedbayes from Python: `fedbayes.run(…)`, `fedbayes.load(…)`, `fedbayes.compare(…)`."""
