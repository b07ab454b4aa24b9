package main

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

func TestHTTPServerErrorsAreLogged(t *testing.T) {
	var out strings.Builder
	server(http.NotFoundHandler(), slog.New(slog.NewJSONHandler(&out, nil))).ErrorLog.Print("http: something")
	if got := out.String(); !strings.Contains(got, `"level":"WARN"`) ||
		!strings.Contains(got, `"msg":"http: something"`) {
		t.Errorf("log = %q, want the HTTP server's error as a warning", got)
	}
}
