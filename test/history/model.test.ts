import { describe, expect, it } from 'vitest';

import { History } from './model.js';

describe('a history', () => {
  it('accepts an address that is held by one caller after another', () => {
    const history = new History();
    history.allocated('a', '10.0.0.1', 1);
    history.releasing('a', 2);
    history.allocated('b', '10.0.0.1', 3);
    history.allocated('a', '10.0.0.2', 4);
    expect(history.violations()).toEqual([]);
    expect(history.held).toEqual(
      new Map([
        ['b', '10.0.0.1'],
        ['a', '10.0.0.2'],
      ]),
    );
  });

  it('reports two callers that held one address at the same time, in any order of their records', () => {
    const history = new History();
    history.allocated('late', '10.0.0.1', 5);
    history.allocated('early', '10.0.0.1', 1);
    history.releasing('early', 6);
    expect(history.violations()).toEqual(['early and late held 10.0.0.1 at the same time']);
  });

  it('finds a long hold that began before a short one', () => {
    const history = new History();
    history.allocated('long', '10.0.0.1', 1);
    history.allocated('short', '10.0.0.1', 2);
    history.releasing('short', 3);
    history.allocated('last', '10.0.0.1', 4);
    expect(history.violations()).toEqual([
      'long and short held 10.0.0.1 at the same time',
      'long and last held 10.0.0.1 at the same time',
    ]);
  });

  it('counts a repeated answer as the same hold, and another address for it as a contradiction', () => {
    const history = new History();
    history.allocated('a', '10.0.0.1', 1);
    history.allocated('a', '10.0.0.1', 2);
    expect(history.holds).toHaveLength(1);
    history.allocated('a', '10.0.0.2', 3);
    expect(history.violations()).toEqual(['a held 10.0.0.1 and was then given 10.0.0.2']);
  });

  it('reports an address that is given again within its cool-down, unless no container had it', () => {
    const history = new History();
    history.allocated('a', '10.0.0.1', 1);
    history.unused('a', 2);
    history.allocated('b', '10.0.0.1', 3);
    history.releasing('b', 4);
    history.allocated('c', '10.0.0.1', 14);
    history.unused('c', 15);
    history.allocated('d', '10.0.0.1', 16);
    expect(history.violations(10)).toEqual([]);
    expect(history.violations(11)).toEqual(['c was given 10.0.0.1 10 ms after b']);
    expect(history.violations(13)).toEqual([
      'c was given 10.0.0.1 10 ms after b',
      'd was given 10.0.0.1 12 ms after b',
    ]);
  });
});
