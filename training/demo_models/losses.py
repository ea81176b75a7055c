"""The two training losses, each one function of rows so that it compiles to few kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from training.common.mixture_model import MixtureLM
from training.common.model import CausalLM, Mask


def signed_loss(model: CausalLM, tokens: Tensor, targets: Tensor, weights: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """Weighted mean of -log p(target) where the weight is positive, of -log(1 - p(target)) where it is negative.

    The second is unlikelihood (Welleck et al., arXiv 1908.04319). Returns the loss and the mean of -log p over
    weights of 1 alone (nats a token). All arguments [B, T].
    """
    return _signed(model(tokens, mask), targets, weights)


def _signed(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    nll = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    flat = weights.flatten()
    unlikely = -torch.log1p(-torch.exp(-nll).clamp(max=1 - 1e-4))
    terms = torch.where(flat >= 0, flat * nll, -flat * unlikely)
    answers = (flat == 1).float()
    return terms.sum() / flat.abs().sum().clamp(min=1), (answers * nll.detach()).sum() / answers.sum().clamp(min=1)


def balanced_loss(
    model: MixtureLM, tokens: Tensor, targets: Tensor, weights: Tensor, mask: Mask, strength: float
) -> tuple[Tensor, Tensor]:
    """As `signed_loss`, plus `strength` times how unevenly routers share tokens out, beyond evenly."""
    logits, uneven = model.balanced(tokens, mask)
    loss, nats = _signed(logits, targets, weights)
    return loss + strength * (uneven - 1), nats


def distillation_loss(
    draft: CausalLM, target: CausalLM, tokens: Tensor, weights: Tensor, mask: Mask, argmax_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """KL divergence of the draft from the target's distribution, blended with cross-entropy to the target's argmax.

    Both are means over `weights` [B, T], the weight of the prediction made at that position. Returns the loss
    and the share of weighted positions where both argmaxes agree.
    """
    with torch.no_grad():
        wanted = target(tokens, mask).float()
        best = wanted.argmax(dim=-1)
        log_p = F.log_softmax(wanted, dim=-1)
    logits = draft(tokens, mask).float()
    log_q = F.log_softmax(logits, dim=-1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
    mode = -log_q.gather(-1, best[..., None])[..., 0]
    total = weights.sum().clamp(min=1)
    loss = ((1 - argmax_weight) * divergence + argmax_weight * mode) * weights
    agreement = ((logits.argmax(dim=-1) == best) * weights).sum() / total
    return loss.sum() / total, agreement.detach()


def alignment_loss(
    target: CausalLM, draft: CausalLM, tokens: Tensor, targets: Tensor, weights: Tensor, mask: Mask, strength: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the target plus `strength` times the KL divergence of draft from target, to train both.

    The divergence draws the draft to the target and, where the text itself decides little, the target to what the
    draft can follow. Returns the loss and the target's nats a token over weights of 1. All [B, T].
    """
    wanted = target(tokens, mask).flatten(0, 1).float()
    log_p = F.log_softmax(wanted, dim=-1)
    log_q = F.log_softmax(draft(tokens, mask).flatten(0, 1).float(), dim=-1)
    nll = -log_p.gather(-1, targets.flatten()[:, None])[:, 0]
    divergence = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
    flat = weights.flatten()
    loss = ((nll + strength * divergence) * flat).sum() / flat.sum().clamp(min=1)
    answers = (flat == 1).float()
    return loss, (answers * nll.detach()).sum() / answers.sum().clamp(min=1)
