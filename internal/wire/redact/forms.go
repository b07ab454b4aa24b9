package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf16"
)

// formsOf returns the encodings of a secret that are searched for: plain, JSON (also JSON within
// JSON), URL escapes, base64 at any offset, and hexadecimal.
func formsOf(secret string) []string {
	list := []string{secret, hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret)))}
	once := quoted(secret)
	for _, q := range once {
		list = append(list, q)
		list = append(list, quoted(q)...)
	}
	for _, u := range []string{url.QueryEscape(secret), url.PathEscape(secret), everyByte(secret)} {
		list = append(list, u, lowerEscapes.ReplaceAllStringFunc(u, strings.ToLower))
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			list = append(list, inBase64(enc, secret, before))
		}
	}
	return list
}

var lowerEscapes = regexp.MustCompile("%[0-9A-F]{2}")

// quoted returns a text as JSON encoders write it: with and without HTML escapes, with all but
// ASCII escaped, and with escaped slashes.
func quoted(text string) []string {
	var list []string
	for _, html := range []bool{false, true} {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(html)
		if e.Encode(text) != nil { // never: a string can always be encoded
			continue
		}
		q := b.String()
		q = q[1 : len(q)-2]
		list = append(list, q, ascii(q), strings.ReplaceAll(q, "/", `\/`))
	}
	return list
}

// ascii escapes all characters but ASCII as JSON does.
func ascii(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		}
	}
	return b.String()
}

// everyByte percent-escapes every byte except letters and digits.
func everyByte(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// inBase64 returns the base64 form of a secret with some bytes before it. Characters that also
// depend on bytes before or after the secret are left out.
func inBase64(enc *base64.Encoding, secret string, before int) string {
	text := enc.EncodeToString(append(make([]byte, before), secret...))
	return text[(before*8+5)/6 : (before+len(secret))*8/6]
}
