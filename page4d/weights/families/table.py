"""All families of published checkpoints: licences, recognition, key maps, and configurations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter

from page4d.errors import UsageError, WeightsError
from page4d.networks.config import NetworkConfig, Schedule
from page4d.networks.config_parts import MaskConfig, MaskHeadKind
from page4d.weights.conversion.accounting import UNCHANGED, Rule, SourceStage
from page4d.weights.families import da3, encoders
from page4d.weights.families.family import Family, FamilyData, Specs
from page4d.weights.families.identity import Identity, candidates_of, check_record, name_of
from page4d.weights.families.pi3 import DEPTH_ENCODER, PI3, PI3_READER, PI3X, PI3X_READER
from page4d.weights.families.vggt import PAGE4D, PAGE4D_READER, VGGT, VGGT_READER, read_mask_head
from page4d.weights.families.vggt_omega import READER as VGGT_OMEGA_READER
from page4d.weights.families.vggt_omega import vggt_omega_keys
from page4d.weights.store import ENCODER_ENTRY

_UNIDENTIFIED = Identity()
_MASK_HEAD = "aggregator.spatial_mask_head."
_VGGT_BLOCKS = ("aggregator.frame_blocks.", "aggregator.global_blocks.")
_PI3_PARTS = ("decoder.", "encoder.blocks.", "register_token")
_PI3X_PARTS = ("metric_token",)

FAMILIES: dict[Family, FamilyData] = {
    Family.VGGT: FamilyData(
        title="VGGT",
        licence="VGGT License v1, 29 July 2025 (Meta); facebook/VGGT-1B is for non-commercial use",
        present=_VGGT_BLOCKS,
        absent=(_MASK_HEAD,),
        keys=VGGT,
        network=VGGT_READER,
    ),
    Family.PAGE4D: FamilyData(
        title="PAGE-4D",
        licence="none stated; derived from VGGT (VGGT License v1), for non-commercial use until clarified",
        present=(*_VGGT_BLOCKS, _MASK_HEAD),
        keys=PAGE4D,
        network=PAGE4D_READER,
    ),
    Family.PI3: FamilyData(
        title="Pi3",
        licence="CC BY-NC 4.0 (weights of Pi3; its code is BSD-3-Clause)",
        present=_PI3_PARTS,
        absent=_PI3X_PARTS,
        keys=PI3,
        network=PI3_READER,
    ),
    Family.DA3: FamilyData(
        title="Depth Anything 3",
        licence="Apache-2.0 (DA3-SMALL and DA3-BASE); CC BY-NC 4.0 (DA3-LARGE and DA3-GIANT)",
        present=("model.backbone.pretrained.camera_token", "model.cam_dec.", "model.cam_enc."),
        keys=da3.da3_keys,
        network=da3.DA3_READER,
    ),
    Family.DA3_MONO: FamilyData(
        title="Depth Anything 3 (single image)",
        licence="Apache-2.0 (DA3MONO-LARGE and DA3METRIC-LARGE)",
        present=("model.backbone.pretrained.cls_token", "model.head.scratch.sky_output_conv2."),
        absent=("model.backbone.pretrained.camera_token", "model.head.norm."),
        keys=da3.da3_mono_keys(),
        network=da3.DA3_MONO_READER,
    ),
    Family.DA3_NESTED: FamilyData(
        title="Depth Anything 3 (nested)",
        licence="CC BY-NC 4.0 (DA3NESTED-GIANT-LARGE)",
        present=(
            "model.da3.backbone.pretrained.camera_token",
            "model.da3.cam_dec.",
            "model.da3.cam_enc.",
            "model.da3_metric.head.scratch.sky_output_conv2.",
        ),
        keys=da3.da3_nested_keys,
        network=da3.DA3_NESTED_READER,
    ),
    Family.VGGT_OMEGA: FamilyData(
        title="VGGT-Omega",
        licence="FAIR Noncommercial Research License v1 (Meta), for code, weights and outputs: "
        "no commercial use of the weights or of any result",
        present=("aggregator.inter_frame_blocks.",),
        keys=vggt_omega_keys,
        network=VGGT_OMEGA_READER,
    ),
    Family.PI3X: FamilyData(
        title="Pi3X",
        licence="CC BY-NC 4.0, strictly non-commercial (weights of Pi3X; its code is BSD-3-Clause)",
        present=(*_PI3_PARTS, *_PI3X_PARTS),
        keys=PI3X,
        network=PI3X_READER,
    ),
    Family.VIT: FamilyData(
        title="ViT (timm)",
        licence="Apache-2.0 for the weights of Google's ViT in timm; others have their own",
        present=("cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
        absent=("register_tokens", "blocks.0.ls1.gamma"),
        keys=encoders.VIT_TIMM,
        encoder=encoders.read_vit,
        notices=("the file does not record its image normalization; page4d uses the constants of ImageNet",),
    ),
    Family.SWIN: FamilyData(
        title="Swin (timm)",
        licence="MIT (Microsoft)",
        present=("layers.0.blocks.0.attn.relative_position_bias_table",),
        absent=("layers.0.downsample.norm.weight",),
        keys=encoders.SWIN_TIMM,
        encoder=encoders.read_swin,
    ),
    Family.SWIN_MICROSOFT: FamilyData(
        title="Swin (Microsoft)",
        licence="MIT (Microsoft)",
        present=("layers.0.blocks.0.attn.relative_position_bias_table", "layers.0.downsample.norm.weight"),
        keys=encoders.SWIN_MICROSOFT,
        encoder=encoders.read_swin,
    ),
    Family.TWINS: FamilyData(
        title="Twins-SVT (timm)",
        licence="Apache-2.0 (Meituan)",
        present=("patch_embeds.0.proj.weight", "pos_block.0.proj.0.weight"),
        keys=encoders.TWINS_TIMM,
        encoder=encoders.read_twins,
    ),
    Family.PAGE4D_ENCODER: FamilyData(title="page4d", keys=UNCHANGED),
}


def titles(families: Iterable[Family], separator: str = " and ") -> str:
    """Return the titles of families, joined."""
    return separator.join(FAMILIES[family].title for family in families)


def recognize(names: Iterable[str], where: str, metadata: Mapping[str, str] | None = None) -> Family:
    """Return the family of a checkpoint from its tensor names and the metadata of its file.

    Raises:
        WeightsError: if no family matches.
    """
    names = list(names)
    if ENCODER_ENTRY in (metadata or {}):
        return Family.PAGE4D_ENCODER

    def found(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in names)

    if found("aggregator.blocks."):
        raise WeightsError(f"'{where}' is already a page4d network", "use it directly, with ⟨weights⟩")
    for family, data in FAMILIES.items():
        if data.present and all(map(found, data.present)) and not any(map(found, data.absent)):
            return family
    for data in FAMILIES.values():
        lacking = [prefix for prefix in data.present if not found(prefix)]
        if len(data.present) > 1 and len(lacking) == 1 and not any(map(found, data.absent)):
            raise WeightsError(
                f"'{where}' has the tensors of {data.title}, but none is named '{lacking[0]}*'",
                "these weights are incomplete, modified or of another network",
            )
    first = ", ".join(sorted(names)[:3])
    raise WeightsError(
        f"'{where}' holds no known network or encoder ({len(names)} tensors: {first}, ...)",
        f"give weights of {titles((f for f, data in FAMILIES.items() if data.present), ', ')} "
        "with their original tensor names",
    )


@dataclass(frozen=True, kw_only=True)
class PublishedNetwork:
    """The network of a source, as its authors run it."""

    family: Family
    config: NetworkConfig
    """Without any mask."""

    mask: MaskConfig | None
    """The mask that it may run with; PAGE-4D only."""

    mask_head: MaskHeadKind | None
    """Structure of the mask head; PAGE-4D only."""

    name: str | None = None
    """Its name, if the family has several published networks and it is one of them."""

    notices: tuple[str, ...] = ()


def network_stage(found: PublishedNetwork, schedule: Schedule, *first: Rule) -> SourceStage:
    """Return the mapping of a published network's tensors to a network with another schedule.

    The rules `first` precede those of the family.
    """
    data, published = FAMILIES[found.family], found.config
    return SourceStage(
        origin=data.title,
        keys=(*first, *(data.keys(published) if callable(data.keys) else data.keys)),
        steps={theirs.value: ours.value for theirs, ours in zip(published.schedule, schedule, strict=True)},
    )


def read_network(
    family: Family, specs: Specs, where: str, given: NetworkConfig | None = None, identity: Identity = _UNIDENTIFIED
) -> PublishedNetwork:
    """Return the published network whose sizes the tensors have, or the given one.

    Raises:
        WeightsError: if the tensors are incomplete or contradict the given network, or its `config.json` does.
        UsageError: if the sizes are not the published ones and no network is given, if the given one has other parts
            than the published ones, or if several published networks have these tensors and nothing identifies one.
    """
    title, reader = FAMILIES[family].title, FAMILIES[family].network
    assert reader is not None
    names = reader.names
    published = {name or title: config for name, config in reader.published.items()}
    left = candidates_of(names, identity, title) or [title]
    candidates = {name: published[name] for name in left} if given is None else {title: given}
    if given is not None:
        _check_parts(given, next(iter(published.values())), title)
    found = reader.sizes(specs)
    differences = {
        name: [(key, number) for key in found if (number := attrgetter(key)(config)) != found[key]]
        for name, config in candidates.items()
    }
    best = min(differences, key=lambda name: len(differences[name]))
    for key, number in differences[best]:
        if given is None:
            raise UsageError(
                f"'{where}' has {key} {found[key]} where the published {best} has {number}",
                "describe it with ⟨configs=FILE.json⟩: tensor shapes do not determine its heads and layers",
            )
        raise WeightsError(
            f"'{where}' has {key} {found[key]} where its ⟨configs⟩ has {number}", "give the matching configuration"
        )
    fitting = [name for name, different in differences.items() if not different]
    name = name_of(fitting, identity, where) if len(fitting) > 1 else best
    config = candidates[name]
    check_record(identity, name, names, reader.stated(identity.record), reader.assumed(config), where)
    if family is Family.PI3X and not any(tensor.startswith(DEPTH_ENCODER) for tensor in specs):
        config = replace(config, known_geometry=None)
    return PublishedNetwork(
        family=family,
        config=replace(config, mask=None),
        mask=config.mask,
        mask_head=read_mask_head(specs) if family is Family.PAGE4D else None,
        name=name if name in names else None,
        notices=identity.notices if names else (),
    )


def _check_parts(given: NetworkConfig, published: NetworkConfig, title: str) -> None:
    """Refuse a network with other kinds of parts than the published one; sizes may differ."""
    for part in fields(NetworkConfig):
        ours, theirs = getattr(given, part.name), getattr(published, part.name)
        if not (is_dataclass(ours) or is_dataclass(theirs) or part.name == "schedule"):
            continue
        if type(ours) is not type(theirs) or (part.name == "schedule" and ours != theirs):
            raise UsageError(
                f"⟨configs⟩: {part.name} is not that of {title}", "change sizes of the published network only"
            )
