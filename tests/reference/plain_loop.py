"""The training loop in plain PyTorch, over the batches that a network saw: nothing of mptui is used."""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_, get_total_norm

SMOOTHING, CLIP, DECAY, RATE = 0.1, 0.5, 0.05, 0.02


def learning_rate(position, total, warmup):
    if position < warmup:
        return RATE * (position + 1) / (warmup + 1)
    return RATE * 0.5 * (1 + math.cos(math.pi * min(1.0, (position - warmup) / max(1, total - warmup))))


def optimizers_of(net, name):
    """Return the optimizers of a network, and the matrices that Muon updates, as 2-D views of weights."""
    trained = [p for p in net.parameters() if p.requires_grad]
    head = set(net.head.parameters())
    hidden = [p for p in trained if name == "muon" and p.ndim >= 2 and p not in head]
    others = [p for p in trained if not any(p is matrix for matrix in hidden)]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    views = {torch.nn.Parameter(p.data.view(len(p), -1)): p for p in hidden}
    if name == "sgd":
        return [torch.optim.SGD(groups, RATE, momentum=0.9, nesterov=True)], views
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, RATE)]
    if views:
        found.append(torch.optim.Muon(list(views), RATE, DECAY, adjust_lr_fn="match_rms_adamw"))
    return found, views


def train(net, epochs, name, *, clip=CLIP, dtype=None, scale=None, ema=None):
    """Train on epochs of windows of (images, targets); return the figures of steps and of epochs."""
    optimizers, views = optimizers_of(net, name)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale or 1.0, growth_interval=4, enabled=scale is not None
    )
    average = {key: value.clone() for key, value in net.state_dict().items()}
    total, position = sum(map(len, epochs)), 0
    warmup = min(len(epochs[0]), total // 2)
    steps, figures = [], []
    for windows in epochs:
        hits = samples = 0
        losses = 0.0
        for window in windows:
            before = {key: value.clone() for key, value in net.state_dict().items()}
            size, loss, right = sum(len(targets) for _, targets in window), torch.zeros(()), 0
            for images, targets in window:
                with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
                    outputs = net(images)
                mean = F.cross_entropy(outputs.float(), targets, label_smoothing=SMOOTHING)
                share = mean * (len(targets) / size)
                scaler.scale(share).backward()
                loss, right = loss + share.detach(), right + int((outputs.argmax(1) == targets).sum())
            for view, weight in views.items():
                view.grad = None if weight.grad is None else weight.grad.view_as(view)
            scaler.unscale_(optimizers[0])
            if views:
                scaler.unscale_(optimizers[1])
            norm = get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
            rate = learning_rate(position, total, warmup)
            known = scaler.state_dict()
            if norm.isfinite():
                if clip:
                    clip_grad_norm_(net.parameters(), clip)
                for optimizer in optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = rate
                    optimizer.step()
                keep = min(ema or 0.0, (1 + position) / (10 + position))
                for key, value in net.state_dict().items():
                    average[key] = (
                        keep * average[key] + (1 - keep) * value if value.is_floating_point() else value
                    )
                hits, samples, losses = hits + right, samples + size, losses + float(loss) * size
                position += 1
            else:
                net.load_state_dict(before)
            if scale is not None:
                scaler.update()
                if not loss.isfinite():  # the scale is not the cause
                    scaler.load_state_dict(known)
            net.zero_grad()
            steps.append((float(loss), rate, float(norm), not norm.isfinite()))
        figures.append((losses / samples, hits / samples) if samples else (math.nan, math.nan))
    return steps, figures, average, optimizers, views
