"""How a simulation shares this machine's CPUs and GPUs among its clients."""

import math
import os

from fedbayes.protocol.settings import Settings

MEMORY_OF_A_WORKER = 2 * 2**30


def cpus() -> int:
    """The CPUs this process may use, which in a container or a batch job are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus(settings: Settings) -> int:
    """The CUDA devices that clients will use."""
    if settings.device not in ("auto", "cuda") and not settings.device.startswith("cuda:"):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def room(device: int, share: float) -> int:
    """How many workers a CUDA device has memory for; each has a context of its own beside its tensors."""
    if share:
        return math.floor(1 / share + 1e-9)
    import torch

    return max(1, int(torch.cuda.get_device_properties(device).total_memory // MEMORY_OF_A_WORKER))


def room_on_named(settings: Settings, devices: int) -> int | None:
    """How many workers `device=cuda:N` has room for; None without such a device, whose client will say so itself."""
    kind, _, number = settings.device.partition(":")
    if kind != "cuda" or not number.isdecimal() or int(number) >= devices:
        return None
    return room(int(number), settings.gpu_share)


def devices_of_workers(settings: Settings, clients: int) -> list[str]:
    """One entry for each worker of the embedded engine: the GPU that it alone sees, or "" for all there are.

    More workers than clients would only cost memory, and 64 cores and one GPU must not become 64 contexts on it.
    """
    workers = max(1, min(cpus() // settings.threads, clients))
    devices = gpus(settings)
    if devices == 0 or settings.device.startswith("cuda:"):
        return [""] * min(workers, room_on_named(settings, devices) or workers)
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = named.split(",")[:devices] if named else [str(device) for device in range(devices)]
    share = min(
        math.ceil(workers / devices), *(room(device, settings.gpu_share) for device in range(devices))
    )
    return [visible[worker % devices] for worker in range(min(workers, share * devices))]


def client_resources(settings: Settings, clients: int) -> tuple[dict[str, int | float], dict[str, str]]:
    """Flower's federation config (without num-supernodes), and environment variables for Ray.

    Ray starts as many workers as fit; more workers than clients would only cost memory.
    """
    total = max(settings.threads, min(cpus(), clients * settings.threads))
    config: dict[str, int | float] = {
        "client-resources-num-cpus": settings.threads,
        "init-args-num-cpus": total,
    }
    devices = gpus(settings)
    if devices == 0:
        return config, {}
    if settings.device.startswith("cuda:"):
        # Ray would show each worker its own GPU as cuda:0, and cuda:1 would not exist there. So it is told of no GPU,
        # and of no more CPUs than there is room on this one.
        workers = min(total // settings.threads, room_on_named(settings, devices) or total)
        config["init-args-num-cpus"] = workers * settings.threads
        return config, {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    # 64 cores and one GPU must not become 64 contexts on it.
    rooms = (room(device, settings.gpu_share) for device in range(devices))
    workers_per_device = min(math.ceil(total // settings.threads / devices), *rooms)
    share = 1 if workers_per_device == 1 else math.floor(10_000 / workers_per_device) / 10_000
    return config | {"client-resources-num-gpus": share, "init-args-num-gpus": devices}, {}
