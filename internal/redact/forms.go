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

// formsOf gives a secret in the forms in which it travels: as it is, as JSON writes it (once, and once more inside of a
// text of JSON), in addresses, in base64 wherever it begins, in hexadecimal.
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

// quoted gives a text as JSON writes it: as it is, with the characters of HTML escaped, with all but ASCII escaped.
func quoted(text string) []string {
	var list []string
	for _, html := range []bool{false, true} {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(html)
		if e.Encode(text) != nil { // a string always can be
			continue
		}
		q := b.String()
		q = q[1 : len(q)-2]
		list = append(list, q, ascii(q), strings.ReplaceAll(q, "/", `\/`))
	}
	return list
}

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

// everyByte escapes every byte that may be, as some do.
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

// inBase64 gives what a secret becomes in base64 when some bytes stand before it, without the characters that its
// neighbours have a part in.
func inBase64(enc *base64.Encoding, secret string, before int) string {
	text := enc.EncodeToString(append(make([]byte, before), secret...))
	return text[(before*8+5)/6 : (before+len(secret))*8/6]
}
