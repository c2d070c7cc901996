package op

import (
	"hash/fnv"
	"math"
)

// InitNormal is n normally distributed numbers of mean 0, a function of the seed and the tensor's name. They are the
// same bits on every machine: nothing here depends on the platform's mathematics or on fused multiply-adds.
func InitNormal(seed uint64, name string, n int, std float64) []float32 {
	h := fnv.New64a()
	h.Write([]byte(name)) // never fails
	mixed := h.Sum64()
	key := Threefry([2]uint32{uint32(seed), uint32(seed >> 32)}, [2]uint32{uint32(mixed), uint32(mixed >> 32)})
	out := make([]float32, n)
	for i := 0; i < n; i += 2 {
		block := Threefry(key, [2]uint32{uint32(i / 2), uint32(uint64(i/2) >> 32)})
		for j := i; j < min(i+2, n); j++ {
			out[j] = float32(float64(normalQuantile((float64(block[j-i])+0.5)/(1<<32))) * std)
		}
	}
	return out
}

// normalQuantile is Wichura's algorithm AS 241 (PPND16), to sixteen digits, for 0 < p < 1.
func normalQuantile(p float64) float64 {
	q := p - 0.5
	if math.Abs(q) <= 0.425 {
		r := 0.180625 - float64(q*q)
		return float64(q*horner(r,
			2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4, 4.5921953931549871457e+4,
			1.3731693765509461125e+4, 1.9715909503065514427e+3, 1.3314166789178437745e+2, 3.3871328727963666080e+0)) /
			horner(r,
				5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4, 2.1213794301586595867e+4,
				5.3941960214247511077e+3, 6.8718700749205790830e+2, 4.2313330701600911252e+1, 1)
	}
	r := math.Sqrt(-logarithm(math.Min(p, 1-p))) // at most √(33·log 2) = 4.8 here, within the algorithm's first tail
	r -= 1.6
	z := horner(r,
		7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e+0,
		3.64784832476320460504e+0, 5.76949722146069140550e+0, 4.63033784615654529590e+0, 1.42343711074968357734e+0) /
		horner(r,
			1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
			6.89767334985100004550e-1, 1.67638483018380384940e+0, 2.05319162663775882187e+0, 1)
	return math.Copysign(z, q)
}

// horner evaluates a polynomial, the highest coefficient first. The conversion rounds the product, so that no compiler
// fuses it with the addition.
func horner(x float64, coefficients ...float64) float64 {
	y := 0.0
	for _, c := range coefficients {
		y = float64(y*x) + c
	}
	return y
}

// logarithm is log x for a normal positive x: the exponent times log 2, and 2·artanh((m−1)/(m+1)) of the mantissa.
func logarithm(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	s := (m - 1) / (m + 1) // below 0.172
	sum := horner(float64(s*s), 1.0/21, 1.0/19, 1.0/17, 1.0/15, 1.0/13, 1.0/11, 1.0/9, 1.0/7, 1.0/5, 1.0/3, 1)
	return float64(float64(e)*math.Ln2) + float64(float64(2*s)*sum)
}
