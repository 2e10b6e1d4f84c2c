import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { describe, expect, test } from 'vitest';

import { DASHBOARDS, grafanaDashboard } from './dashboards.js';
import { generatedFiles } from './documents.js';

const FOLDER = import.meta.dirname;

describe('a generated file is as its sources say (npm run dashboards)', () => {
  test.each(Object.entries(generatedFiles()))('%s', (path, text) => {
    expect(readFileSync(join(FOLDER, path), 'utf8')).toBe(text);
  });

  test('there is no dashboard without a source', () => {
    const files = readdirSync(join(FOLDER, 'dashboards')).map((name) => name.replace('.json', ''));
    expect(files.sort()).toEqual(DASHBOARDS.map(({ uid }) => uid).sort());
  });
});

describe.each(DASHBOARDS.map((definition) => [definition.title, definition] as const))('%s', (_, definition) => {
  const { panels = [], templating } = grafanaDashboard(definition);
  const shown = panels.filter(({ type }) => type !== 'row');

  test('each panel has a title of its own, a description, a data source and a query', () => {
    const titles = shown.map(({ title }) => title);
    expect(new Set(titles).size).toBe(titles.length);
    for (const panel of shown) {
      expect(panel).toMatchObject({
        description: expect.stringMatching(/\.$/),
        datasource: { uid: expect.anything() },
      });
      expect('targets' in panel && panel.targets.length).toBeGreaterThan(0);
    }
  });

  test('panels do not overlap, and are within the 24 columns', () => {
    const cells = panels.flatMap(({ gridPos }) => {
      const { x, y, w, h } = gridPos!;
      expect(x + w).toBeLessThanOrEqual(24);
      return Array.from({ length: w * h }, (_, index) => `${x + (index % w)},${y + Math.floor(index / w)}`);
    });
    expect(new Set(cells).size).toBe(cells.length);
  });

  test('the data sources and the nodes can be chosen', () => {
    expect(templating.list?.map(({ name }) => name)).toEqual(['datasource', 'tempo', 'instance']);
  });
});
