"""The transfer function of sRGB."""

import numpy as np

from page4d.exporters.pictures import linear_from_srgb


def test_known_values() -> None:
    # 18 % grey is 118, middle grey 50 % light is 188; the two pieces of the curve meet between 10 and 11.
    rgb = np.array([[0, 255, 118], [10, 11, 188]], dtype=np.uint8)
    expected = [[0.0, 1.0, 0.1812], [10 / 255 / 12.92, ((11 / 255 + 0.055) / 1.055) ** 2.4, 0.5029]]
    linear = linear_from_srgb(rgb)
    assert linear.dtype == np.float32
    assert linear.shape == rgb.shape
    np.testing.assert_allclose(linear, expected, atol=5e-5)


def test_every_value_survives_the_inverse() -> None:
    values = np.arange(256, dtype=np.uint8)
    linear = linear_from_srgb(values).astype(np.float64)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    np.testing.assert_array_equal(np.rint(encoded * 255), values)
