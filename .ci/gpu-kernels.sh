#!/usr/bin/env bash
# gpu-kernels.sh SHIM [GGML]: tables of what Mesa's compilers for GPUs make of the heaviest kernels of a training step,
# without a GPU. For development only: no test needs it.
#
# SHIM is a folder, searched to any depth, with Mesa's drm-shim: libamdgpu_noop_drm_shim.so, libintel_noop_drm_shim.so,
# libnouveau_noop_drm_shim.so, those that there are. Drivers are those of the system, or libvulkan_{radeon,intel,nouveau}.so
# in SHIM. GGML is the folder vulkan-shaders of ggml's sources, whose products are counted, too; that needs glslang 13 or
# later (GLSLANG names it). docs/BENCHMARKS.md says how to build the shims, and has the tables.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 SHIM [GGML]" >&2; exit 2; }
SHIM=$(realpath "$1")
GGML=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."
OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp} AMDGPU_GPU_ID=navi31 INTEL_STUB_GPU_PLATFORM=bmg NOUVEAU_CHIPSET=192
export NVK_I_WANT_A_BROKEN_VULKAN_DRIVER=1

# shader NAME DEFINE...: compiles ggml's product of matrices for types that the definitions name.
shader() {
	local name=$1
	shift
	"${GLSLANG:-glslangValidator}" -P"#extension GL_GOOGLE_include_directive : require" --target-env vulkan1.2 -S comp -I"$GGML" \
		-DACC_TYPE=float -DACC_TYPEV2=vec2 -DACC_TYPE_VEC4=vec4 -DD_TYPE=float "${@/#/-D}" "$GGML/mul_mm.comp" -o "$OUT/ggml/$name.spv" >&2
}

if [ -n "$GGML" ]; then # as vulkan-shaders-gen.cpp has them
	mkdir "$OUT/ggml"
	shader f32 DATA_A_F32 FLOAT_TYPE=float FLOAT_TYPEV2=vec2 FLOAT_TYPEV4=vec4 FLOAT_TYPEV8=mat2x4 LOAD_VEC_A=4 LOAD_VEC_B=4 \
		B_TYPE=vec4 B_TYPE_SCALAR=float B_TYPEV4=vec4
	half=(FLOAT16 DATA_A_F16 FLOAT_TYPE=float16_t FLOAT_TYPEV2=f16vec2 FLOAT_TYPEV4=f16vec4 FLOAT_TYPEV8=f16mat2x4
		LOAD_VEC_A=8 LOAD_VEC_B=8 B_TYPE=f16mat2x4 B_TYPE_SCALAR=float16_t B_TYPEV4=f16vec4)
	shader f16 "${half[@]}"
	shader f16-matrices "${half[@]}" COOPMAT
	shader bf16 FLOAT16 DATA_A_BF16 TO_FLOAT_TYPE=bf16_to_fp32 FLOAT_TYPE=float FLOAT_TYPEV2=vec2 FLOAT_TYPEV4=vec4 \
		LOAD_VEC_A=4 LOAD_VEC_B=4 B_TYPE=u16vec4 B_TYPE_SCALAR=uint16_t B_TYPEV4=bf16vec4 B_IS_FLOAT DATA_B_BF16
fi

go build -o "$OUT/stepkernels" ./internal/testing/stepkernels
folders=()
for driver in amdgpu:radeon nouveau:nouveau intel:intel; do
	shim=$(find "$SHIM" -name "lib${driver%:*}_noop_drm_shim.so" -print -quit)
	[ -n "$shim" ] || continue
	folder=$OUT/${driver#*:}
	mkdir "$folder"
	manifest=/usr/share/vulkan/icd.d/${driver#*:}_icd.json
	library=$(find "$SHIM" -name "libvulkan_${driver#*:}.so" -print -quit)
	if [ -n "$library" ]; then
		manifest=$folder/icd.json
		echo "{\"file_format_version\":\"1.0.1\",\"ICD\":{\"api_version\":\"1.3.0\",\"library_path\":\"$library\"}}" >"$manifest"
	fi
	echo "gpu-kernels: ${driver#*:}" >&2
	export VK_ICD_FILENAMES=$manifest
	LD_PRELOAD=$shim "$OUT/stepkernels" "$folder"
	LD_PRELOAD=$shim python3 .ci/gpu-kernels/tables.py measure "$folder" ${GGML:+"$OUT/ggml"}
	folders+=("$folder")
done
[ ${#folders[@]} -gt 0 ] || { echo "gpu-kernels: $SHIM: found no lib*_noop_drm_shim.so" >&2; exit 2; }
python3 .ci/gpu-kernels/tables.py print "${folders[@]}"
