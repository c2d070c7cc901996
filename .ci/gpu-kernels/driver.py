"""Compiles SPIR-V by a driver of Vulkan, for its code and its statistics."""
import ctypes
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p, cast, pointer
import struct
from types import SimpleNamespace

# Features by structure type: how many there are. Those that the driver has are enabled.
FEATURES = {49: 12, 51: 47, 53: 15, 1000269000: 1, 1000506000: 2, 1000068001: 1, 1000286000: 3, 1000141000: 3}
EXTENSIONS = ["VK_KHR_pipeline_executable_properties", "VK_KHR_cooperative_matrix", "VK_EXT_pipeline_robustness",
              "VK_EXT_robustness2", "VK_KHR_shader_bfloat16"]
OF_EXTENSION = dict(zip(EXTENSIONS, (1000269000, 1000506000, 1000068001, 1000286000, 1000141000)))
CAPTURE = 0x40 | 0x80  # statistics, internal representations
COMPUTE, STORAGE_BUFFER, FULL_SUBGROUPS, NOT_ROBUST = 0x20, 7, 2, 1
BINDING, DESCRIPTOR_SET = 33, 34  # decorations of SPIR-V


def structure(title, /, **fields):
    return type(title, (Structure,), {"_fields_": list(fields.items())})


def headed(title, /, **fields):
    return structure(title, type=c_uint32, next=c_void_p, **fields)


Head = headed("Head")
Features2 = headed("Features2", on=c_uint32 * 55)
InstanceInfo = headed("InstanceInfo", flags=c_uint32, app=c_void_p, layers=c_uint32, layer_names=c_void_p, extensions=c_uint32,
                      extension_names=c_void_p)
AppInfo = headed("AppInfo", app=c_char_p, app_version=c_uint32, engine=c_char_p, engine_version=c_uint32, api=c_uint32)
Extension = structure("Extension", name=c_char * 256, version=c_uint32)
QueueInfo = headed("QueueInfo", flags=c_uint32, family=c_uint32, count=c_uint32, priorities=c_void_p)
DeviceInfo = headed("DeviceInfo", flags=c_uint32, queues=c_uint32, queue_infos=c_void_p, layers=c_uint32, layer_names=c_void_p,
                    extensions=c_uint32, extension_names=c_void_p, features=c_void_p)
LayoutBinding = structure("LayoutBinding", binding=c_uint32, kind=c_uint32, count=c_uint32, stages=c_uint32, samplers=c_void_p)
SetLayoutInfo = headed("SetLayoutInfo", flags=c_uint32, count=c_uint32, bindings=c_void_p)
PushRange = structure("PushRange", stages=c_uint32, offset=c_uint32, size=c_uint32)
LayoutInfo = headed("LayoutInfo", flags=c_uint32, sets=c_uint32, set_layouts=c_void_p, ranges=c_uint32, push=c_void_p)
ModuleInfo = headed("ModuleInfo", flags=c_uint32, size=c_size_t, code=c_void_p)
Constant = structure("Constant", id=c_uint32, offset=c_uint32, size=c_size_t)
Constants = structure("Constants", count=c_uint32, entries=c_void_p, size=c_size_t, data=c_void_p)
Stage = headed("Stage", flags=c_uint32, stage=c_uint32, module=c_uint64, name=c_char_p, constants=c_void_p)
SubgroupSize = headed("SubgroupSize", size=c_uint32)
Robustness = headed("Robustness", buffers=c_uint32, uniforms=c_uint32, vertices=c_uint32, images=c_uint32)
PipelineInfo = headed("PipelineInfo", flags=c_uint32, stage=Stage, layout=c_uint64, base=c_uint64, base_index=c_int32)
PipelineOf = headed("PipelineOf", pipeline=c_uint64)
ExecutableOf = headed("ExecutableOf", pipeline=c_uint64, index=c_uint32)
Executable = headed("Executable", stages=c_uint32, name=c_char * 256, description=c_char * 256, subgroup=c_uint32)
Statistic = headed("Statistic", name=c_char * 256, description=c_char * 256, format=c_uint32, value=c_uint64)
Representation = headed("Representation", name=c_char * 256, description=c_char * 256, is_text=c_uint32, size=c_size_t, data=c_void_p)


def chain(structures):
    """Links structures in order. Returns the address of the first, or None."""
    for s, after in zip(structures, structures[1:]):
        s.next = cast(pointer(after), c_void_p)
    return cast(pointer(structures[0]), c_void_p) if structures else None


class Driver:
    """A device of the first adapter of Vulkan."""

    def __init__(self):
        self.loader = ctypes.CDLL("libvulkan.so.1")
        app = AppInfo(type=0, api=1 << 22 | 3 << 12)
        self.instance, count = c_void_p(), c_uint32(1)
        self.check("vkCreateInstance", byref(InstanceInfo(type=1, app=cast(pointer(app), c_void_p))), None, byref(self.instance))
        self.physical = c_void_p()
        self.call("vkEnumeratePhysicalDevices", self.instance, byref(count), byref(self.physical))
        properties = (c_uint32 * 512)()
        self.call("vkGetPhysicalDeviceProperties", self.physical, properties)
        self.name = bytes(properties)[20:276].split(b"\0")[0].decode().strip()  # "NVK": the shim knows no product's name
        self.device = self.open()

    def call(self, name, *arguments):
        return getattr(self.loader, name)(*arguments)

    def check(self, name, *arguments):
        if result := self.call(name, *arguments):
            raise RuntimeError(f"{name} fails with {result}")

    def open(self):
        count = c_uint32()
        self.call("vkEnumerateDeviceExtensionProperties", self.physical, None, byref(count), None)
        has = (Extension * count.value)()
        self.call("vkEnumerateDeviceExtensionProperties", self.physical, None, byref(count), has)
        has = {e.name.decode() for e in has}
        names = [e.encode() for e in EXTENSIONS if e in has]
        self.trusting = "VK_EXT_pipeline_robustness" in has
        kinds = [k for k in FEATURES if k not in OF_EXTENSION.values() or k in [OF_EXTENSION[e.decode()] for e in names]]
        features = [Features2(type=1000059000)] + [headed("F", on=c_uint32 * FEATURES[k])(type=k) for k in kinds]
        first = chain(features)
        self.call("vkGetPhysicalDeviceFeatures2", self.physical, first)
        if 1000286000 in kinds:  # images and null descriptors, for which NVK checks indices in trusted kernels, too
            features[1 + kinds.index(1000286000)].on[1:] = [0, 0]
        priority, device = ctypes.c_float(1), c_void_p()
        queue = QueueInfo(type=2, count=1, priorities=cast(pointer(priority), c_void_p))
        listed = (c_char_p * len(names))(*names)
        info = DeviceInfo(type=3, next=first, queues=1, queue_infos=cast(pointer(queue), c_void_p), extensions=len(names),
                          extension_names=cast(listed, c_void_p))
        self.check("vkCreateDevice", self.physical, byref(info), None, byref(device))
        return device

    def compile(self, code, trusted=True, subgroup=0, constants=(), push=0):
        """Compiles a module's entry point main. subgroup 0 leaves the size to the driver. Returns its executables."""
        stage = Stage(type=18, stage=COMPUTE, module=self.module(code), name=b"main")
        entries = (Constant * len(constants))(*[Constant(id=i, offset=4 * at, size=4) for at, (i, _) in enumerate(constants)])
        values = struct.pack(f"<{len(constants)}I", *[v for _, v in constants])
        special = Constants(count=len(constants), entries=cast(entries, c_void_p), size=len(values), data=cast(c_char_p(values), c_void_p))
        stage.constants = cast(pointer(special), c_void_p)
        size = SubgroupSize(type=1000225001, size=subgroup)
        if subgroup:
            stage.next, stage.flags = cast(pointer(size), c_void_p), FULL_SUBGROUPS
        info, pipeline = PipelineInfo(type=29, flags=CAPTURE, stage=stage, layout=self.layout(code, push)), c_uint64()
        none = Robustness(type=1000068000, buffers=NOT_ROBUST)
        if trusted and self.trusting:
            info.next = cast(pointer(none), c_void_p)
        self.check("vkCreateComputePipelines", self.device, c_uint64(0), 1, byref(info), None, byref(pipeline))
        return self.executables(pipeline)

    def module(self, code):
        module, data = c_uint64(), c_char_p(code)
        info = ModuleInfo(type=16, size=len(code), code=cast(data, c_void_p))
        self.check("vkCreateShaderModule", self.device, byref(info), None, byref(module))
        return module.value

    def layout(self, code, push):
        most = max(bindings(code), default=-1) + 1
        each = (LayoutBinding * most)(*[LayoutBinding(binding=i, kind=STORAGE_BUFFER, count=1, stages=COMPUTE) for i in range(most)])
        of_set, layout = c_uint64(), c_uint64()
        info = SetLayoutInfo(type=32, count=most, bindings=cast(each, c_void_p))
        self.check("vkCreateDescriptorSetLayout", self.device, byref(info), None, byref(of_set))
        constants = PushRange(stages=COMPUTE, size=push)
        info = LayoutInfo(type=30, sets=1, set_layouts=cast(pointer(of_set), c_void_p), ranges=int(push > 0),
                          push=cast(pointer(constants), c_void_p))
        self.check("vkCreatePipelineLayout", self.device, byref(info), None, byref(layout))
        return layout.value

    def executables(self, pipeline):
        found = self.listed("vkGetPipelineExecutablePropertiesKHR", PipelineOf(type=1000269001, pipeline=pipeline), Executable, 1000269002)
        return [self.executable(pipeline, i, e) for i, e in enumerate(found)]

    def executable(self, pipeline, index, e):
        of = ExecutableOf(type=1000269003, pipeline=pipeline, index=index)
        statistics = self.listed("vkGetPipelineExecutableStatisticsKHR", of, Statistic, 1000269004)
        name = "vkGetPipelineExecutableInternalRepresentationsKHR"
        texts = self.listed(name, of, Representation, 1000269005)
        rooms = [ctypes.create_string_buffer(t.size) for t in texts]
        for t, room in zip(texts, rooms):
            t.data = cast(room, c_void_p)
        self.function(name)(self.device, byref(of), byref(c_uint32(len(texts))), texts)
        return SimpleNamespace(name=e.name.decode(), subgroup=e.subgroup, statistics={s.name.decode(): s.value for s in statistics},
                               texts={t.name.decode(): room.value.decode(errors="replace") for t, room in zip(texts, rooms)})

    def listed(self, name, of, kind, number):
        """Calls a function that lists structures of a type, for their count and for them."""
        count = c_uint32()
        self.function(name)(self.device, byref(of), byref(count), None)
        found = (kind * count.value)(*[kind(type=number) for _ in range(count.value)])
        self.function(name)(self.device, byref(of), byref(count), found)
        return found

    def function(self, name):
        address = self.loader.vkGetDeviceProcAddr
        address.restype, address.argtypes = c_void_p, [c_void_p, c_char_p]
        return ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(c_uint32), c_void_p)(address(self.device, name.encode()))


def words(code):
    return struct.unpack(f"<{len(code) // 4}I", code)


def instructions(code):
    """Yields the opcode and the operands of each instruction of SPIR-V."""
    w, at = words(code), 5
    while at < len(w):
        count, opcode = w[at] >> 16, w[at] & 0xFFFF
        yield opcode, w[at + 1:at + count]
        at += count


def bindings(code):
    return [operands[2] for opcode, operands in instructions(code) if opcode == 71 and operands[1] == BINDING]


def needs_subgroups(code):
    """Whether a module uses operations of subgroups, or matrices."""
    return any(opcode == 17 and operands[0] in (*range(61, 69), 6022) for opcode, operands in instructions(code))


def invocations(code):
    """The size of a module's workgroup."""
    return next((operands[2] * operands[3] * operands[4] for opcode, operands in instructions(code)
                 if opcode == 16 and operands[1] == 17), 0)
