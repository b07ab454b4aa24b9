package shape

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Object is a JSON object of the protocol.
type Object = map[string]any

// Unprocessable refuses what the door has no equivalent for.
func Unprocessable(code perdure.Code, field, detail string) error {
	p := api.NewProblem(code, detail, field)
	p.Status = http.StatusUnprocessableEntity
	return p
}

// OrElse is a text, or another one if it is empty.
func OrElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// Itoa writes a whole number.
func Itoa[N ~int | ~int64](n N) string { return strconv.FormatInt(int64(n), 10) }

// OrNull is a JSON value, or null if there is none.
func OrNull(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	return raw
}
