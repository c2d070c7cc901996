package webgpu

// WebGPU's library for ARM calls hypot and hypotf. glibc 2.35 has new versions of both, which a linker takes where it
// finds them. The older ones give the same results, and programs run with glibc 2.34, too.

/*
#cgo LDFLAGS: -Wl,--wrap=hypot -Wl,--wrap=hypotf

double older_hypot(double, double);
float older_hypotf(float, float);
__asm__(".symver older_hypot, hypot@GLIBC_2.17\n.symver older_hypotf, hypotf@GLIBC_2.17");

double __wrap_hypot(double x, double y) { return older_hypot(x, y); }
float __wrap_hypotf(float x, float y) { return older_hypotf(x, y); }
*/
import "C"
