import { defineConfig } from 'vitest/config';

export default defineConfig({
  // Workspaces resolve to their TypeScript sources, so tests need no build of ours but the native one.
  ssr: { resolve: { conditions: ['podwire:source', 'node', 'import', 'default'] } },
  test: {
    include: ['**/*.test.ts'],
    exclude: ['**/node_modules/**', '**/dist/**', '**/build/**'],
    pool: 'forks',
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
