package rules

import (
	"strings"

	"github.com/perdure/perdure"
)

// KindOfLimit gives the kind whose concurrency a limit is.
func KindOfLimit(name string) (kind string, ok bool) {
	return strings.CutPrefix(name, perdure.LimitOfKind)
}
