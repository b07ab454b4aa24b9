//go:build race

package httpd

// raceEnabled tells that everything takes ten times as long.
const raceEnabled = true
