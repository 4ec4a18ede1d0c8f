"""Tests that are coroutines: a story of what it is about, and of fixtures and parameters."""

import inspect
from collections.abc import Callable, Coroutine

Story = Callable[..., Coroutine[None, None, None]]


def as_test(story: Story, play: Callable[..., None], *fixtures: str) -> Callable[..., None]:
    """Return the test that has a story played.

    `play` takes the story, the fixtures that are named, and all that the story takes besides its
    first parameter, each by its name.
    """

    def test(**given: object) -> None:
        play(story, **given)

    kind = inspect.Parameter.KEYWORD_ONLY
    _, *wanted = inspect.signature(story).parameters
    names = dict.fromkeys((*fixtures, *wanted))
    parameters = [inspect.Parameter(name, kind) for name in names]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    test.__doc__ = story.__doc__
    return test
