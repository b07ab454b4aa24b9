// Package supervisor is a chat agent on the public SDK.
package supervisor
