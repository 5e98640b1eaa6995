"""The module's output written out word by word, as the oracle of its tests."""

import math

import torch


def literal_attention(module, query, key, value, lengths=None):
    """The paper word by word: soft attention, times the normalised truncated prior, renormalised.

    For batch_first, width rule 'half', the paper's convention. Groups of heads share one of keys and values, and a row
    sees `module.window` words before the one it stands on.

    Args:
        query: [B, T, E]; key and value [B, S, features].
        lengths: of the sources, a list; None for S.

    Returns:
        The output [B, T, E], and the weights [B, H, T, S].
    """
    size, heads, group = module.head_dim, module.num_heads, module.num_heads // module.num_kv_heads
    q, k, v = _projected(module, query, key, value)
    step = module.aligner.step
    delta_p = torch.exp(torch.tanh(q / size**0.5 @ step.hidden.weight.T) @ step.output.weight.T)  # [B, T, 1 or H]
    position = 1 + delta_p.cumsum(1)
    (batch, rows), source = query.shape[:2], key.shape[1]
    weights = torch.zeros(batch, heads, rows, source, dtype=query.dtype)
    context = torch.zeros_like(q)
    for b in range(batch):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            shared = slice(h // group * size, (h // group + 1) * size)
            for i in range(rows):
                p = position[b, i, h % position.shape[2]]
                g = math.floor(min(p.item() + module.aligner.delta, source if lengths is None else lengths[b]))
                begin = 0 if module.window is None else max(0, min(math.floor(p.item()), g) - 1 - module.window)
                j = torch.arange(begin + 1, g + 1, dtype=query.dtype)
                soft = torch.softmax(k[b, begin:g, shared] @ q[b, i, part] / size**0.5, 0)
                prior = torch.exp(-((j - p) ** 2) / (2 * (p / 2) ** 2))
                prior = prior / prior.sum()
                posterior = soft * prior / (soft * prior).sum()
                weights[b, h, i, begin:g] = posterior
                context[b, i, part] = posterior @ v[b, begin:g, shared]
    return module.out_proj(context), weights


def _projected(module, *inputs):
    """Query, key and value behind their projections."""
    weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    projected = [x @ weight.T for x, weight in zip(inputs, weights)]
    if module.in_proj_bias is None:
        return projected
    biases = module.in_proj_bias.split([len(weight) for weight in weights])
    return [x + bias for x, bias in zip(projected, biases)]
