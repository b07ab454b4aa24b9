package sim

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"
)

// A stream is a named source of random numbers. There are several, so that one more number for a
// fault does not change the workload.
type stream struct{ *rand.Rand }

func newStream(seed uint64, name string) stream {
	h := fnv.New64a()
	h.Write([]byte(name))
	return stream{rand.New(rand.NewPCG(seed, h.Sum64()))}
}

// chance is true with probability p.
func (s stream) chance(p float64) bool { return p > 0 && s.Float64() < p }

// between draws uniformly from a to b.
func (s stream) between(a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	return a + time.Duration(s.Int64N(int64(b-a)))
}

// scaled draws from a to b so that each order of magnitude is equally likely.
func (s stream) scaled(a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	lo, hi := math.Log(float64(a)), math.Log(float64(b))
	return time.Duration(math.Exp(lo + s.Float64()*(hi-lo))).Round(time.Millisecond)
}

// share draws a probability from a to b in the same way.
func (s stream) share(a, b float64) float64 {
	return math.Exp(math.Log(a) + s.Float64()*(math.Log(b)-math.Log(a)))
}

// Read implements io.Reader, for ids.
func (s stream) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.Uint32())
	}
	return len(b), nil
}

func pick[T any](s stream, list ...T) T { return list[s.IntN(len(list))] }
