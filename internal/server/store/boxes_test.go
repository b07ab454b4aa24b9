package store

import (
	"fmt"
	"runtime"
	"testing"
)

// Values that share a list keep theirs, however many there are, and also when only they are left of it.
func TestBoxedValuesKeepTheirs(t *testing.T) {
	const many = 10*boxesAtOnce + 1
	texts, numbers := make([]any, many), make([]any, many)
	func() {
		c := columns{of: binding}
		for i := range many {
			texts[i], numbers[i] = c.boxText(fmt.Sprint("text ", i)), c.boxNumber(int64(i)<<20-255)
		}
	}()
	for range 3 {
		runtime.GC()
		_ = make([]string, many)
	}
	for i := range many {
		if want := fmt.Sprint("text ", i); texts[i] != any(want) {
			t.Errorf("text %d is %v, want %q", i, texts[i], want)
		}
		if want := int64(i)<<20 - 255; numbers[i] != any(want) {
			t.Errorf("number %d is %v, want %d", i, numbers[i], want)
		}
	}
	var c columns
	for _, n := range []int64{0, 1, 255, 256, -1, -1 << 63, 1<<63 - 1} {
		if got := c.boxNumber(n); got != any(n) {
			t.Errorf("boxed %d is %v", n, got)
		}
	}
	if got := c.boxText(""); got != any("") {
		t.Errorf("the boxed empty text is %q", got)
	}
}

// Many values cost few allocations.
func TestBoxedValuesShareAllocations(t *testing.T) {
	text := "a text that is not known to the compiler" + fmt.Sprint(len(t.Name()))
	n := testing.AllocsPerRun(100, func() {
		c := columns{of: binding}
		for i := range boxesAtOnce {
			_, _ = c.boxText(text), c.boxNumber(int64(i)+1000)
		}
	})
	if n > 2 {
		t.Errorf("%d texts and numbers cost %v allocations, want 2", boxesAtOnce, n)
	}
}
