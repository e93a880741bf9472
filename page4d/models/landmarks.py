"""Landmark tokens: a subset of the tokens of every image, used as keys of sparse attention."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_MIN_SCORE = float("-inf")


def cell_counts(grid: tuple[int, int], landmarks: int) -> tuple[int, int]:
    """Return the rows and columns of a grid of at most `landmarks` cells, as square as possible."""
    if landmarks >= grid[0] * grid[1]:
        return grid
    rows = min(int(landmarks**0.5), grid[0])
    columns = min(landmarks // rows, grid[1])
    return min(landmarks // columns, grid[0]), columns


def cells(grid: tuple[int, int], landmarks: int) -> Int[Tensor, "cells K"]:
    """Return the patches of every cell by distance from its center; short lists are padded by -1."""
    counts = cell_counts(grid, landmarks)
    members: list[list[int]] = []
    for row in range(counts[0]):
        rows = range(row * grid[0] // counts[0], (row + 1) * grid[0] // counts[0])
        for column in range(counts[1]):
            columns = range(column * grid[1] // counts[1], (column + 1) * grid[1] // counts[1])
            middle = ((rows[0] + rows[-1]) / 2, (columns[0] + columns[-1]) / 2)
            by_distance = sorted(
                ((y - middle[0]) ** 2 + (x - middle[1]) ** 2, y * grid[1] + x) for y in rows for x in columns
            )
            members.append([place for _, place in by_distance])
    longest = max(len(places) for places in members)
    return torch.tensor([places + [-1] * (longest - len(places)) for places in members])


def choose_landmarks(
    score: Float[Tensor, "B T V P"], grid: tuple[int, int], landmarks: int
) -> Int[Tensor, "B T V K"]:
    """Return the patch of highest score in every cell; ties are broken by the distance from the cell center."""
    places = cells(grid, landmarks).to(score.device)
    in_cells = torch.where(places < 0, _MIN_SCORE, score[..., places.clamp(min=0)])  # [B, T, V, cells, K]
    is_best = in_cells == in_cells.amax(dim=-1, keepdim=True)
    ranks = torch.arange(places.shape[1], device=score.device)
    first = torch.where(is_best, ranks, places.shape[1] - 1).amin(dim=-1)  # [B, T, V, cells]
    chosen = places.expand(*first.shape, -1).gather(-1, first[..., None])[..., 0]
    return chosen.sort(dim=-1).values


def landmark_places(chosen: Int[Tensor, "B T V K"], num_special: int, num_tokens: int) -> Int[Tensor, "B L"]:
    """Return the indices of all special tokens and chosen patches in the concatenated tokens of all images."""
    batch, times, views = chosen.shape[:3]
    special = torch.arange(num_special, device=chosen.device).expand(batch, times, views, -1)
    of_image = torch.cat([special, num_special + chosen], dim=-1)
    starts = num_tokens * torch.arange(times * views, device=chosen.device).reshape(times, views, 1)
    return (of_image + starts).flatten(1)
