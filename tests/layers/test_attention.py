"""Attention with a rank-one logit bias equals the plain formula, chunked or not."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from page4d.errors import ShapeError
from page4d.networks.layers.attention import Attention, LogitsBias, attend, rotary_tables
from page4d.networks.profile.meta import LiveBytes

EXACT = {"rtol": 0, "atol": 1e-14}


def heads(seed: int = 0, width: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 2, 4, 9, width, generator=generator, dtype=torch.float64).unbind(0)


def vectors(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, 9, generator=generator, dtype=torch.float64).unbind(0)


def weights(query: Tensor, key: Tensor, bias: LogitsBias | None) -> Tensor:
    """Attention weights by definition, with the full logit matrix."""
    logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if bias is not None:
        row = torch.ones_like(bias.key) if bias.row is None else bias.row
        logits = logits + (row[:, :, None] * bias.key[:, None, :])[:, None]
    return logits.softmax(dim=-1)


KEY, ROW = vectors()
CASES = {
    "none": None,
    "key": LogitsBias(key=KEY),
    "row x key": LogitsBias(key=KEY, row=ROW),
    "learned key": LogitsBias(key=KEY.clone().requires_grad_()),
    "learned row x key": LogitsBias(key=KEY, row=ROW.clone().requires_grad_()),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("width", [4, 6, 12, 16])
@pytest.mark.parametrize("max_queries", [None, 1, 4, 100])
def test_attention_equals_the_definition(case: str, width: int, max_queries: int | None) -> None:
    query, key, value = heads(width=width)
    out = attend(query, key, value, CASES[case], max_queries)
    torch.testing.assert_close(out, weights(query, key, CASES[case]) @ value, **EXACT)


@pytest.mark.parametrize("case", list(CASES))
def test_the_bias_never_becomes_a_full_mask(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask is one row for all queries and needs no gradient: fused kernels have no gradient for masks."""
    masks = []

    def spy(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, scale: float) -> Tensor:
        masks.append(attn_mask)
        return plain(query, key, value, attn_mask=attn_mask, scale=scale)

    plain = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    attend(*heads(), CASES[case], max_queries=4)
    if case == "key":
        assert [mask.shape for mask in masks] == [(2, 1, 1, 9)] * 3
    else:
        assert masks == [None] * 3


@pytest.mark.parametrize("learned", [False, True])
def test_a_constant_on_all_keys_changes_nothing(learned: bool) -> None:
    query, key, value = heads()
    constant = torch.full((2, 9), 3.0, dtype=torch.float64, requires_grad=learned)
    torch.testing.assert_close(
        attend(query, key, value, LogitsBias(key=constant)), attend(query, key, value), **EXACT
    )


def test_the_bias_acts_on_keys_not_on_queries() -> None:
    query, key, value = heads()
    biased = attend(query, key, value, LogitsBias(key=KEY))
    assert (biased - attend(query, key, value)).abs().max() > 0.1
    per_query = attend(query, key, value, LogitsBias(key=torch.ones_like(KEY), row=ROW))
    torch.testing.assert_close(per_query, attend(query, key, value), **EXACT)


def test_attention_mass_on_the_mask_falls_with_the_weight_of_the_bias() -> None:
    """Its slope is minus the variance of the mask under the attention, for every query and head."""
    query, key, _ = heads()
    mask = torch.rand(2, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def mass(weight: float) -> Tensor:
        """Attend with the mask as value."""
        value = mask[:, None, :, None].expand(-1, 4, -1, query.shape[-1])
        return attend(query, key, value, LogitsBias(key=-weight * mask))[..., 0]

    masses = [mass(weight) for weight in (-2.0, -0.5, 0.0, 1.0, 4.0)]
    for before, after in pairwise(masses):
        assert (after < before).all()
    attention = weights(query, key, LogitsBias(key=-mask))
    mean = (attention * mask[:, None, None]).sum(-1)
    variance = (attention * mask[:, None, None] ** 2).sum(-1) - mean**2
    step = 2e-3  # fourth-order finite difference: truncation and rounding errors are both below the tolerance
    slope = (8 * (mass(1 + step) - mass(1 - step)) - (mass(1 + 2 * step) - mass(1 - 2 * step))) / (12 * step)
    torch.testing.assert_close(slope, -variance, rtol=0, atol=1e-11)


@pytest.mark.parametrize("learned", [False, True])
def test_a_large_bias_removes_keys(learned: bool) -> None:
    query, key, value = heads()
    removed = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0, 1], dtype=torch.bool)
    bias = LogitsBias(key=(-1e4 * removed.double()).expand(2, -1).clone().requires_grad_(learned))
    kept = attend(query, key[:, :, ~removed], value[:, :, ~removed])
    torch.testing.assert_close(attend(query, key, value, bias), kept, rtol=0, atol=1e-12)


def test_a_bias_per_pair_of_instants_folds_into_channels() -> None:
    """One bias per head and pair of instants, with three tokens per instant, takes one channel per instant."""
    query, key, value = heads()
    table = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    instants = torch.eye(3, dtype=torch.float64).repeat_interleave(3, dim=0)  # [N, T]
    bias = LogitsBias(
        key=KEY, query_factors=instants.expand(2, 4, -1, -1), key_factors=(table @ instants.T).transpose(-1, -2)
    )
    logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + KEY[:, None, None]
    logits = logits + table.repeat_interleave(3, dim=-2).repeat_interleave(3, dim=-1)
    for max_queries in (None, 4):
        ours = attend(query, key, value, bias, max_queries)
        torch.testing.assert_close(ours, logits.softmax(dim=-1) @ value, **EXACT)


@pytest.mark.parametrize("case", ["learned key", "learned row x key"])
def test_the_gradient_of_the_bias_equals_the_definition(case: str) -> None:
    query, key, value = heads()
    bias = CASES[case]
    learned = bias.key if bias.key.requires_grad else bias.row
    (ours,) = torch.autograd.grad(attend(query, key, value, bias).square().sum(), learned)
    (theirs,) = torch.autograd.grad((weights(query, key, bias) @ value).square().sum(), learned)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_half_precision_keeps_small_differences_of_the_bias() -> None:
    """A bias near 4 rounds to steps of 1/64 in bfloat16; the remainder channel keeps the difference."""
    query = key = torch.zeros(1, 1, 2, 16, dtype=torch.bfloat16)
    value = torch.eye(2, 16, dtype=torch.bfloat16)[None, None]
    bias = LogitsBias(key=torch.tensor([[3.995, 3.985]]), row=torch.full((1, 2), 64.0))
    out = attend(query.float(), key.float(), value.float(), bias)[0, 0, 0, :2]
    rounded = attend(query, key, value, bias)[0, 0, 0, :2].float()
    assert 0.1 < out[0] - out[1] < 0.9
    torch.testing.assert_close(rounded, out, rtol=0, atol=0.01)


@pytest.mark.parametrize("normed", [False, True])
def test_chunks_of_queries_do_not_change_the_output(normed: bool) -> None:
    torch.manual_seed(0)
    attention = Attention(16, 2, qk_norm_eps=1e-5 if normed else None).double()
    tokens = torch.randn(3, 7, 16, dtype=torch.float64)
    rope = rotary_tables(torch.arange(14).reshape(7, 2), 8, dtype=torch.float64)
    bias = LogitsBias(key=torch.randn(3, 7, dtype=torch.float64), row=torch.randn(3, 7, dtype=torch.float64))
    whole = attention(tokens, rope, bias)
    for max_queries in (1, 3, 7):
        torch.testing.assert_close(attention(tokens, rope, bias, max_queries), whole, **EXACT)


def test_chunks_of_queries_lower_the_peak_of_memory() -> None:
    """In half precision, in which keys are normalized and rotated in single precision, part by part."""
    attention = Attention(16, 2, qk_norm_eps=1e-5).bfloat16()
    tokens, rope = torch.randn(3, 24, 16, dtype=torch.bfloat16), rotary_tables(torch.arange(48).reshape(24, 2), 8)
    peaks = []
    for max_queries in (4, 24):
        with LiveBytes() as counted, torch.no_grad():
            attention(tokens, rope, None, max_queries)
        peaks.append(counted.peak)
    assert peaks[0] < 0.5 * peaks[1]


def test_a_width_that_does_not_divide_into_heads_is_refused() -> None:
    with pytest.raises(ShapeError, match="width 10 does not divide into 4 heads"):
        Attention(10, 4)


@pytest.mark.parametrize("max_queries", [None, 4])
@pytest.mark.parametrize("shape", [(2, 4, 9, 9), (1, 4, 9, 9), (2, 1, 9, 9)])
def test_pair_logits_are_added_and_get_a_gradient(shape: tuple[int, ...], max_queries: int | None) -> None:
    query, key, value = heads()
    added = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    out = attend(query, key, value, CASES["key"], max_queries, added)
    logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + KEY[:, None, None, :] + added
    torch.testing.assert_close(out, logits.softmax(dim=-1) @ value, **EXACT)
    (gradient,) = torch.autograd.grad(out.square().sum(), added)
    assert gradient.any()


def test_rms_normalized_queries_and_keys_are_scale_invariant() -> None:
    torch.manual_seed(0)
    layer = Attention(8, 2, head_dim=6, qkv_bias=False, out_bias=False, qk_rms=True).double()
    tokens = torch.randn(2, 5, 8, dtype=torch.float64)
    query, key, value = layer.qkv(tokens).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
    with torch.no_grad():
        layer.q_norm.gamma.normal_()
    length = 6**0.5
    query, key = (length * part / part.norm(dim=-1, keepdim=True) for part in (query * 7, key))
    mixed = (query * layer.q_norm.gamma @ key.mT).softmax(-1) @ value
    torch.testing.assert_close(layer(tokens), layer.proj(mixed.transpose(1, 2).flatten(2)), **EXACT)


def test_rotation_equals_complex_multiplication() -> None:
    """Channels i and i + d/4 of a half form a complex number, rotated by position * 100**(-4i/d)."""
    positions = torch.tensor([[0, 0], [1, 1], [1, 2], [3, 1], [7, 5]])
    tables = rotary_tables(positions, 16, dtype=torch.float64)
    given = torch.randn(2, 3, 5, 16, dtype=torch.float64)
    rotated = tables.rotate(given)
    for half in range(2):
        for i in range(4):
            first, second = 8 * half + i, 8 * half + i + 4
            pair = torch.complex(given[..., first], given[..., second])
            pair = pair * torch.exp(1j * positions[:, half].double() * 100.0 ** (-i / 4))
            torch.testing.assert_close(rotated[..., first], pair.real)
            torch.testing.assert_close(rotated[..., second], pair.imag)
    twice = tables.repeat(2).rotate(torch.cat([given, given], dim=2))
    assert torch.equal(twice, torch.cat([rotated, rotated], dim=2))
    assert tables.repeat(1) is tables
    assert rotary_tables(positions, 16).cos.dtype is torch.float32
    with pytest.raises(ShapeError, match="multiples of 4, not 6"):
        rotary_tables(positions, 6)
