package httpd

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// checkQuery refuses unknown parameters, and repeated ones that may not be. An allowed name that ends
// with * is a prefix.
func checkQuery(c *call, allowed, repeated []string) error {
	q, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil {
		return perdure.Errorf(perdure.CodeInvalid, "the query is malformed")
	}
	for name, values := range q {
		known := slices.Contains(allowed, name)
		for _, a := range allowed {
			if prefix, ok := strings.CutSuffix(a, "*"); ok && strings.HasPrefix(name, prefix) &&
				len(name) > len(prefix) {
				known = true
			}
		}
		if !known {
			return perdure.Invalid(name, "is no parameter of this call")
		}
		if len(values) > 1 && !slices.Contains(repeated, name) {
			return perdure.Invalid(name, "is given %d times", len(values))
		}
		for _, v := range values {
			if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
				return perdure.Invalid(name, "is not valid UTF-8, or has a NUL byte")
			}
		}
	}
	return nil
}

// intParam reads a whole number from the query.
func (c *call) intParam(name string, def, low, high int64) (int64, error) {
	text := c.URL.Query().Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, perdure.Invalid(name, "takes a whole number from %d to %d", low, high)
	}
	return n, nil
}

// durationParam reads a duration from the query: "30s", or a bare number of seconds.
func (c *call) durationParam(name string, def, limit time.Duration) (time.Duration, error) {
	text := c.URL.Query().Get(name)
	if text == "" {
		return def, nil
	}
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		text = fmt.Sprint(n, "s")
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > limit {
		return 0, perdure.Invalid(name, "takes a duration from 0s to %s, such as 30s", limit)
	}
	return d, nil
}

// isID matches the id of a run.
var isID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// cursorParam reads the cursor of a list of runs: the next_cursor of the previous page.
func (c *call) cursorParam() (perdure.RunID, error) {
	text := c.URL.Query().Get("cursor")
	if text != "" && !isID.MatchString(text) {
		return "", perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	return perdure.RunID(text), nil
}

// listPage reads the limit and the cursor of a list whose cursor is the id or name of its last
// entry. The default limit is that of a page.
func (c *call) listPage() (kernel.Page, error) {
	limit, err := c.intParam("limit", 1000, 1, maxPage)
	if err != nil {
		return kernel.Page{}, err
	}
	after := c.URL.Query().Get("cursor")
	if len(after) > perdure.MaxName {
		return kernel.Page{}, perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	return kernel.Page{After: after, Limit: int(limit)}, nil
}

// idempotencyKey reads the Idempotency-Key header, bare or as a quoted string.
func (c *call) idempotencyKey() (string, error) {
	values := c.Header.Values("Idempotency-Key")
	if len(values) > 1 {
		return "", perdure.Invalid("Idempotency-Key", "is given %d times", len(values))
	}
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	if u, err := strconv.Unquote(key); err == nil {
		key = u
	}
	if key == "" || len(key) > maxKey {
		return "", perdure.Invalid("Idempotency-Key", "has 1 to 255 bytes")
	}
	return key, perdure.CheckText("Idempotency-Key", key)
}

// checkIDs checks a list of run ids. None of them may stand in it twice.
func checkIDs(field string, ids []perdure.RunID) error {
	seen := make(map[perdure.RunID]bool, len(ids))
	for i, id := range ids {
		if !isID.MatchString(string(id)) {
			return perdure.Invalid(fmt.Sprintf("%s[%d]", field, i), "is no id of a run")
		}
		if seen[id] {
			return perdure.Invalid(fmt.Sprintf("%s[%d]", field, i), "stands twice in this call")
		}
		seen[id] = true
	}
	return nil
}
