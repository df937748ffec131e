"""Our steps against torch.optim's."""

import pytest
import torch

from bayes_core.inference.optimisers import Optimiser, OptimizerState

TORCH = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@pytest.mark.parametrize("name", TORCH)
def test_ten_steps_with_a_pause_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(2, 5), torch.randn(10, 2, 5) * torch.logspace(-3, 3, 5)
    expected = start.clone().requires_grad_()
    reference = TORCH[name]([expected], lr=0.01)

    parameters, state = start.clone(), OptimizerState.blank(start, name)
    for half in (gradients[:5], gradients[5:]):
        optimiser = Optimiser(parameters, state, name, 0.01)  # a new one from the state, as in a new round
        kept = state.moments.clone()
        for gradient in half:
            optimiser.step(gradient)
            expected.grad = gradient.clone()
            reference.step()
        assert torch.equal(state.moments, kept)
        state = optimiser.state()
    torch.testing.assert_close(parameters, expected.detach(), rtol=1e-5, atol=1e-6)
    assert state.steps == 10


def test_the_first_step_of_adam_has_the_size_of_the_rate() -> None:
    parameters = torch.zeros(3)
    optimiser = Optimiser(parameters, OptimizerState.blank(parameters, "adam"), "adam", 0.25)
    optimiser.step(torch.tensor([1e-3, -1.0, 1e3]))
    torch.testing.assert_close(parameters, torch.tensor([-0.25, 0.25, -0.25]), rtol=1e-4, atol=0)
    # m = 0.1·G and v = 0.001·G²
    torch.testing.assert_close(optimiser.state().moments[0], torch.tensor([1e-4, -0.1, 100.0]))
    torch.testing.assert_close(optimiser.state().moments[1], torch.tensor([1e-9, 1e-3, 1e3]))


def test_sgd_by_hand() -> None:
    parameters = torch.tensor([1.0, 2.0])
    optimiser = Optimiser(parameters, OptimizerState.blank(parameters, "sgd"), "sgd", 0.5)
    optimiser.step(torch.tensor([2.0, -4.0]))
    assert parameters.tolist() == [0.0, 4.0]
    assert optimiser.state().steps == 1
