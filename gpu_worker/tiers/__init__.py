"""Where a model's weights are on their way to the device: disk, host memory, the link, the device."""
