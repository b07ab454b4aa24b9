package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Sign returns the header webhook-signature of a message: one signature for each secret, so that a
// receiver needs to know only one of them. It signs id.timestamp.body by the scheme v1 of Standard
// Webhooks.
func Sign(secrets []string, id string, at time.Time, body []byte) (string, error) {
	var out []string
	for _, s := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, "whsec_"))
		if err != nil || len(key) == 0 {
			return "", fmt.Errorf("sign %s: a secret can't be read", id) // without the secret
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		out = append(out, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	if len(out) == 0 {
		return "", fmt.Errorf("sign %s: there is no secret", id)
	}
	return strings.Join(out, " "), nil
}
