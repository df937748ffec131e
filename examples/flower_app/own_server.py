"""A Flower ServerApp of one's own: `PFedBayes` in the place of Flower's FedAvg."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from own_client import make_network

from bayes_core.flat import flatten
from strategies.pfedbayes import PFedBayes

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = PFedBayes(beta=1.0, min_available_nodes=2)
    start = strategy.initial_arrays(flatten(make_network()))
    result = strategy.start(grid, start, num_rounds=int(context.run_config["rounds"]))
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(
            f"round {number}: " + ", ".join(f"{name} {value:.3f}" for name, value in sorted(metrics.items()))
        )
