"""Pages on the host or a device, by name."""

from services.engine.transfer.page_memory import HostMemory, PageMemory


def page_memory(device: str) -> PageMemory:
    if device == "cpu":
        return HostMemory()
    from services.engine.transfer.device_memory import DeviceMemory  # torch takes seconds to import

    return DeviceMemory(device)
