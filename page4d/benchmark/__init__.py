"""Measured against predicted memory and time of networks on a device."""
