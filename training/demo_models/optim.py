"""Muon for matrices, AdamW for the rest, and the warm-up, stable, decay schedule."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonalise(gradient: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of a batch [n, rows, columns], approximately.

    Quintic Newton-Schulz iteration with the coefficients of Jordan et al., "Muon" (2024): singular values
    end between about 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.bfloat16() if gradient.is_cuda else gradient.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(gradient.dtype)


class Muon:
    """Momentum, orthogonalised, for matrices; those of one shape are updated as one batch.

    The update of a matrix [rows, columns] is scaled by sqrt(max(1, rows / columns)); weight decay is decoupled.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], weight_decay: float) -> None:
        self.groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            self.groups[matrix.shape].append(matrix)
        self.momenta = {s: torch.zeros(len(g), *s, device=g[0].device) for s, g in self.groups.items()}
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self, lr: float, momentum: float = 0.95) -> None:
        """Apply the gradients (Nesterov momentum) and clear them."""
        for shape, matrices in self.groups.items():
            gradient = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])
            average = self.momenta[shape]
            average.lerp_(gradient, 1 - momentum)
            update = orthogonalise(gradient.lerp_(average, momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            parameters: list[Tensor] = list(matrices)
            torch._foreach_mul_(parameters, 1 - lr * self.weight_decay)
            torch._foreach_add_(parameters, list(update.unbind()), alpha=-lr * scale)
            for matrix in matrices:
                matrix.grad = None


class Optimizer:
    """Muon on the layers' matrices; AdamW on embeddings, norms and routers; both under one learning-rate factor."""

    def __init__(self, model: nn.Module, matrix_lr: float, embedding_lr: float, weight_decay: float) -> None:
        named = dict(model.named_parameters())
        matrices = [p for name, p in named.items() if _by_direction(name, p)]
        rest = [p for name, p in named.items() if not _by_direction(name, p)]
        self.matrix_lr = matrix_lr
        self.embedding_lr = embedding_lr
        self.muon = Muon(matrices, weight_decay)
        self.adam = torch.optim.AdamW(rest, lr=embedding_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(self, factor: float) -> None:
        """One update at `factor` times the learning rates; gradients are cleared."""
        self.muon.step(self.matrix_lr * factor)
        for group in self.adam.param_groups:
            group["lr"] = self.embedding_lr * factor
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def _by_direction(name: str, parameter: nn.Parameter) -> bool:
    """Whether all directions of a parameter are to move alike: rows of tokens and of experts are not."""
    return parameter.ndim == 2 and "embed_tokens" not in name and not name.endswith("mlp.gate.weight")


def learning_rate_factor(step: int, steps: int, warmup: int, decay_from: int) -> float:
    """Warm-up, stable, decay: linear up over `warmup` steps, 1, linear to 0 from step `decay_from` to `steps`."""
    if step < warmup:
        return (step + 1) / warmup
    if step < decay_from:
        return 1.0
    return max(0.0, (steps - step) / max(1, steps - decay_from))
