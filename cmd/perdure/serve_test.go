package main

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestHTTPServerErrorsAreLogged(t *testing.T) {
	var out strings.Builder
	server(http.NotFoundHandler(), slog.New(slog.NewJSONHandler(&out, nil))).ErrorLog.Print("http: something")
	if got := out.String(); !strings.Contains(got, `"level":"WARN"`) ||
		!strings.Contains(got, `"msg":"http: something"`) {
		t.Errorf("log = %q, want the HTTP server's error as a warning", got)
	}
}

// Half handshakes by the thousand don't fill the log.
func TestFailedHandshakesGetALineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		errors := server(http.NotFoundHandler(), slog.New(slog.NewTextHandler(&out, nil))).ErrorLog
		for range 1000 {
			errors.Print("http: TLS handshake error from 10.0.0.9:4000: EOF")
		}
		errors.Print("http: something else")
		time.Sleep(handshakePause)
		errors.Print("http: TLS handshake error from 10.0.0.9:4000: EOF")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], "handshakes=1") ||
			!strings.Contains(lines[1], "something else") || !strings.Contains(lines[2], "handshakes=1000") {
			t.Errorf("log = %q, want a line for the first handshake and one for the 1000 since", out.String())
		}
	})
}
