package main

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

func TestWhatTheHTTPServerComplainsOfIsInTheLog(t *testing.T) {
	var out strings.Builder
	server(http.NotFoundHandler(), slog.New(slog.NewJSONHandler(&out, nil))).ErrorLog.Print("http: something")
	if got := out.String(); !strings.Contains(got, `"level":"WARN"`) || !strings.Contains(got, `"msg":"http: something"`) {
		t.Error(got)
	}
}
