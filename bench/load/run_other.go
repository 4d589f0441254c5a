//go:build !linux

package load

import (
	"context"
	"errors"
)

// Run needs epoll; elsewhere it always fails with [errors.ErrUnsupported].
func Run(_ context.Context, spec Spec) (Result, error) {
	if err := spec.validate(); err != nil {
		return Result{}, err
	}
	return Result{}, errors.ErrUnsupported
}

// Hold always fails with [errors.ErrUnsupported] here.
func Hold(context.Context, string, int) (release func(), err error) {
	return nil, errors.ErrUnsupported
}
