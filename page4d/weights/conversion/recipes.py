"""Conversion recipes: the network that a set of sources fills, and the origin of each of its parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from page4d.choices import Recipe, Target
from page4d.errors import UsageError, WeightsError
from page4d.networks.config import NetworkConfig, Schedule
from page4d.networks.config_parts import BiasRows, MaskConfig, MaskHeadKind, MaskRule, Streams
from page4d.networks.encoders.build import EncoderConfig
from page4d.weights.conversion.accounting import Exemption, SourceStage
from page4d.weights.conversion.initialization import NewTensors
from page4d.weights.conversion.view_time import ViewTimeOptions, view_time_network
from page4d.weights.families.family import Family
from page4d.weights.families.table import FAMILIES, PublishedNetwork, encoder_stage, network_stage
from page4d.weights.families.vggt import VGGTSettings

RECIPE_SOURCES: dict[Recipe, tuple[Family, ...]] = {
    **{Recipe(family): (family,) for family, data in FAMILIES.items() if data.network is not None},
    Recipe.THREE_STAGE: (Family.PI3, Family.PAGE4D),
}
"""Sources of each recipe, in the order in which they are read."""

_MASK_UNUSED = Exemption(rule="mask head: not used (--mask off)", pattern=r"aggregator\.spatial_mask_head\..*")
_MASK_SCALARS = Exemption(
    rule="aggregator.dynamic.head",
    pattern=r"aggregator\.spatial_mask_head\.(alpha_logit|tau_logit)",
    target=r"aggregator.dynamic.head.\1",
)
_PI3_HEADS = Exemption(
    rule="Pi3 heads: PAGE-4D heads are used", pattern=r"(?:(?:point|conf|camera)_(?:decoder|head))\..*"
)
_PAGE4D_ENCODER = Exemption(rule="encoder: Pi3 encoder is used", pattern=r"aggregator\.patch_embed\..*")
_PAGE4D_REGISTERS = Exemption(rule="registers: Pi3 registers are used", pattern=r"aggregator\.register_token")


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A network or encoder to be filled, and the origin of its tensors: sources, copies, new tensors."""

    config: NetworkConfig | EncoderConfig
    stages: tuple[SourceStage, ...]
    new: NewTensors = field(default_factory=NewTensors)
    last_of_pi3: int | None = None
    """The last layer that Pi3 fills, if any."""
    notices: tuple[str, ...] = ()


def encoder_blueprint(family: Family, config: EncoderConfig) -> Blueprint:
    """Return the blueprint of a single encoder."""
    return Blueprint(config=config, stages=(encoder_stage(family),), notices=FAMILIES[family].notices)


def network_blueprint(
    recipe: Recipe,
    target: Target,
    found: Mapping[Family, PublishedNetwork],
    mask: bool | None = None,
    options: ViewTimeOptions | None = None,
) -> Blueprint:
    """Return the blueprint of a recipe's network.

    Raises:
        UsageError: if options contradict the recipe, or PAGE-4D is converted without specifying its mask.
        WeightsError: if the sources do not fit each other.
    """
    if mask is not None and Family.PAGE4D not in RECIPE_SOURCES[recipe]:
        raise UsageError(f"--mask applies to PAGE-4D; recipe {recipe} has no mask", "leave it out")
    if recipe is Recipe.THREE_STAGE and target is not Target.PAGE4D_MV:
        raise UsageError("recipe three-stage makes the view x time network only", "pass --to page4d-mv")
    if options is not None and target is not Target.PAGE4D_MV:
        raise UsageError("options of the view x time network are given without --to page4d-mv", "pass --to page4d-mv")
    options = options or ViewTimeOptions()
    if recipe is Recipe.THREE_STAGE:
        return _three_stage(found[Family.PI3], found[Family.PAGE4D], options, mask=mask is not False)
    (family,) = RECIPE_SOURCES[recipe]
    if family is Family.PAGE4D:
        return _page4d(found[family], target, mask, options)
    return _single(found[family], target, options)


def _single(found: PublishedNetwork, target: Target, options: ViewTimeOptions) -> Blueprint:
    published, notices = found.config, (*found.notices, *FAMILIES[found.family].notices)
    if target is Target.OWN:
        return Blueprint(config=published, stages=(_stage(found, published.schedule),), notices=notices)
    config = view_time_network(published, MaskHeadKind.CONV, options)
    return Blueprint(
        config=config,
        stages=(_stage(found, config.schedule),),
        new=NewTensors(values=options.scalars, mask_head=True),
        last_of_pi3=published.depth - 1 if found.family in (Family.PI3, Family.PI3X) else None,
        notices=notices,
    )


def _page4d(found: PublishedNetwork, target: Target, mask: bool | None, options: ViewTimeOptions) -> Blueprint:
    kind = found.mask_head
    assert kind is not None
    if kind is MaskHeadKind.CKPT150 and target is Target.OWN:
        raise WeightsError(
            "this PAGE-4D checkpoint has the mask head of an older variant (checkpoint_150), not of the release",
            "pass --to page4d-mv, which supports that mask head",
        )
    if mask is None:
        raise UsageError(
            "a PAGE-4D checkpoint does not record whether it runs with its mask",
            "pass --mask on for checkpoint_mask.pt, --mask off for checkpoint_nomask.pt",
        )
    exemptions = (_MASK_SCALARS if mask else _MASK_UNUSED,)
    if target is Target.OWN:
        config = replace(found.config, mask=_release_mask(found)) if mask else found.config
        return Blueprint(config=config, stages=(_stage(found, config.schedule, exemptions),))
    start = _release_mask(found).layers[0] if mask and kind is MaskHeadKind.RELEASE else None
    config = view_time_network(found.config, kind if mask else MaskHeadKind.CONV, options, start)
    return Blueprint(
        config=config,
        stages=(_stage(found, config.schedule, exemptions),),
        new=NewTensors(values=options.scalars, mask_head=not mask),
    )


def _three_stage(
    pi3: PublishedNetwork, page4d: PublishedNetwork, options: ViewTimeOptions, *, mask: bool
) -> Blueprint:
    lower, upper, kind = pi3.config, page4d.config, page4d.mask_head
    assert kind is not None
    _check_joint(lower, upper)
    replaced = "|".join(str(layer) for layer in range(lower.depth))
    page4d_layers = Exemption(
        rule=f"layers 0 to {lower.depth - 1}: Pi3 layers are used",
        pattern=rf"aggregator\.(?:frame|global)_blocks\.(?:{replaced})\..*",
    )
    registers = Exemption(
        rule="registers: first Pi3 registers, in each slot",
        pattern="register_token",
        target="aggregator.special.register_token",
        adapt=_FirstRegisters(count=upper.num_registers, slots=upper.token_slots),
    )
    exemptions = (_PAGE4D_ENCODER, _PAGE4D_REGISTERS, page4d_layers, _MASK_SCALARS if mask else _MASK_UNUSED)
    joined = replace(
        upper,
        encoder=lower.encoder,
        norm_eps=tuple((lower if layer < lower.depth else upper).norm_eps_of(layer) for layer in range(upper.depth)),
    )
    config = view_time_network(joined, kind if mask else MaskHeadKind.CONV, options)
    if config.sparse is not None:  # its blocks are copies of Pi3 blocks, in layers of PAGE-4D
        config = replace(config, sparse=replace(config.sparse, norm_eps=lower.norm_eps_of(lower.depth - 1)))
    stages = (
        _stage(pi3, config.schedule, (_PI3_HEADS, registers)),
        _stage(page4d, config.schedule, exemptions),
    )
    # PAGE-4D's mask head was not trained on the features of Pi3's layers.
    values = {"alpha": 0.0, **options.scalars} if mask else options.scalars
    return Blueprint(
        config=config,
        stages=stages,
        new=NewTensors(values=values, mask_head=not mask),
        last_of_pi3=lower.depth - 1,
        notices=("three-stage joins layers that were not trained together: fine-tune the network before use",),
    )


def _check_joint(lower: NetworkConfig, upper: NetworkConfig) -> None:
    """Refuse to stack layers of PAGE-4D on those of a Pi3 of another size."""
    for name in ("encoder", "num_heads", "mlp_ratio", "qk_norm_eps", "rope_base"):
        ours, theirs = getattr(lower, name), getattr(upper, name)
        if ours != theirs:
            raise WeightsError(f"Pi3 has {name} {ours} where PAGE-4D has {theirs}", "use checkpoints of one size")
    if lower.num_registers != upper.num_registers + 1 or lower.depth >= upper.depth:
        raise WeightsError(
            f"Pi3 has {lower.num_registers} registers and {lower.depth} layers, "
            f"PAGE-4D {upper.num_registers} and {upper.depth}",
            "three-stage needs one register more and fewer layers in Pi3",
        )


@dataclass(frozen=True)
class _FirstRegisters:
    """Fill every slot with the first registers of a source that has a single slot."""

    count: int
    slots: int

    def __call__(self, tokens: Tensor) -> Tensor:
        return tokens[:, :1, : self.count].expand(-1, self.slots, -1, -1)


def _stage(found: PublishedNetwork, schedule: Schedule, exemptions: tuple[Exemption, ...] = ()) -> SourceStage:
    return network_stage(found.family, found.config, schedule, exemptions)


def _release_mask(found: PublishedNetwork) -> MaskConfig:
    """Return the mask of the public PAGE-4D release."""
    assert isinstance(found.settings, VGGTSettings)
    settings = found.settings.mask
    if settings.mask_after_frame_block[0] != settings.layers_masked[0] - 1:
        raise UsageError(
            f"--config: the mask is predicted after frame block {settings.mask_after_frame_block[0]} "
            f"and acts from layer {settings.layers_masked[0]}",
            "page4d predicts it one layer before the first masked layer",
        )
    return MaskConfig(
        layers=settings.layers_masked,
        head=MaskHeadKind.RELEASE,
        rule=MaskRule.PAGE4D,
        streams=Streams.SINGLE,
        bias_rows=BiasRows.SPECIAL,
    )
