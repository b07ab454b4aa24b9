package life

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// makeToken makes a callback's token. It can't be guessed without the root secret. It is the same each
// time, so that a repeated commit gets the same answer.
func makeToken(e *kernel.Engine, t perdure.TenantID, run perdure.RunID, wait string) string {
	body := string(t) + "\x00" + string(run) + "\x00" + wait
	return "cb_" + base64.RawURLEncoding.EncodeToString(append([]byte(body),
		access.RootSecret(e).Newest().Derive("callback\x00"+body)...))
}

// ProcessTokens gives the tokens that sign the files of a process, the current one first. A token is
// derived from the root secret, so that any node verifies the files without having stored it. Those
// before it are of earlier root secrets.
func ProcessTokens(e *kernel.Engine, t perdure.TenantID, run perdure.RunID, epoch int64) (out []string) {
	text := "process\x00" + string(t) + "\x00" + string(run) + "\x00" + strconv.FormatInt(epoch, 10)
	root := access.RootSecret(e)
	for _, g := range slices.Backward(root[max(0, len(root)-access.TokenGenerations):]) {
		out = append(out, base64.RawURLEncoding.EncodeToString(g.Derive(text)))
	}
	return out
}

// ValidToken verifies the MAC of a callback token. It reads nothing from the store.
func ValidToken(e *kernel.Engine, token string) bool {
	_, _, _, ok := readToken(e, token)
	return ok
}

// readToken decodes a token and verifies its MAC.
func readToken(e *kernel.Engine, token string) (t perdure.TenantID, run perdure.RunID, wait string, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, "cb_"))
	if err != nil || len(raw) <= sha256.Size || !strings.HasPrefix(token, "cb_") {
		return "", "", "", false
	}
	body := string(raw[:len(raw)-sha256.Size])
	parts := strings.Split(body, "\x00")
	if len(parts) != 3 || !access.RootSecret(e).Signed(body, raw[len(raw)-sha256.Size:]) {
		return "", "", "", false
	}
	return perdure.TenantID(parts[0]), perdure.RunID(parts[1]), parts[2], true
}
