import eslint from '@eslint/js';
import importX, { createNodeResolver } from 'eslint-plugin-import-x';
import tseslint from 'typescript-eslint';

import { allowedImports } from './test/architecture/allowed-imports.mjs';

const TESTS = ['**/*.test.ts', '**/testing/**/*.ts', '**/test/**/*.ts'];

/** Where time, chance and the process may be touched; everywhere else they come in as values. */
const EDGES = [
  '**/main.ts',
  'services/shared/runtime/**',
  'services/shared/telemetry/process-metrics.ts',
  'deploy/**',
  'addon/lib/load.ts',
];

const CAST = {
  selector: 'TSAsExpression:not([typeAnnotation.typeName.name="const"])',
  message: 'A cast hides a wrong value: check it at the border instead.',
};
const WALL_CLOCK = {
  selector: 'NewExpression[callee.name="Date"][arguments.length=0]',
  message: 'Time comes in as a Clock.',
};
/** `expect.poll` has its time from vitest.config.ts; these have no setting, and wait for one second by default. */
const WAIT = 'CallExpression[callee.object.name="vi"][callee.property.name=/^wait(For|Until)$/]';
const IMPATIENT = [
  `${WAIT}[arguments.length=1]`,
  `${WAIT} > ObjectExpression.arguments:not(:has(> Property[key.name="timeout"]))`,
].map((selector) => ({ selector, message: 'A busy machine may take longer than a second: give a timeout.' }));

export default tseslint.config(
  { ignores: ['**/dist/**', '**/build/**', 'proto/gen/**', '**/node_modules/**'] },
  eslint.configs.recommended,
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: {
      parserOptions: {
        projectService: { allowDefaultProject: ['vitest.config.ts'] },
        tsconfigRootDir: import.meta.dirname,
      },
    },
    plugins: {
      podwire: { rules: { 'allowed-imports': allowedImports } },
      'import-x': importX,
    },
    settings: {
      // Imports name the .js that a .ts becomes; without the alias no import of ours resolves, and no cycle is ever found.
      'import-x/resolver-next': [
        createNodeResolver({
          extensionAlias: { '.js': ['.ts', '.js'] },
          conditionNames: ['podwire:source', 'import', 'node', 'default'],
        }),
      ],
      'import-x/parsers': { '@typescript-eslint/parser': ['.ts'] },
      'import-x/extensions': ['.ts', '.js'],
    },
    rules: {
      'podwire/allowed-imports': 'error',
      'import-x/no-cycle': 'error',
      'import-x/no-extraneous-dependencies': ['error', { devDependencies: TESTS }],
      'max-lines': ['error', 600],
      'max-lines-per-function': ['error', 60],
      'no-console': 'error',
      'no-restricted-syntax': ['error', CAST],
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true, allowBoolean: true }],
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': 'error',
      '@typescript-eslint/no-unnecessary-condition': 'error',
      '@typescript-eslint/only-throw-error': 'error',
    },
  },
  {
    files: ['**/*.ts'],
    ignores: [...EDGES, ...TESTS],
    rules: {
      'no-restricted-properties': [
        'error',
        { object: 'Date', property: 'now', message: 'Time comes in as a Clock.' },
        { object: 'Math', property: 'random', message: 'Chance comes in as a function.' },
      ],
      'no-restricted-syntax': ['error', CAST, WALL_CLOCK],
      'no-restricted-globals': ['error', { name: 'process', message: 'The process is touched in main.ts only.' }],
      'no-restricted-imports': ['error', { name: 'node:process', message: 'The process is touched in main.ts only.' }],
    },
  },
  {
    files: TESTS,
    rules: {
      'max-lines-per-function': 'off',
      'no-restricted-syntax': ['error', CAST, ...IMPATIENT],
      // A test asserts on the data that it reads: its shape is checked there.
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/no-unsafe-argument': 'off',
      '@typescript-eslint/no-unsafe-assignment': 'off',
      '@typescript-eslint/no-unsafe-call': 'off',
      '@typescript-eslint/no-unsafe-member-access': 'off',
      '@typescript-eslint/no-unsafe-return': 'off',
      'import-x/no-extraneous-dependencies': 'off',
    },
  },
  {
    // Grafana's second schema of dashboards, for which the SDK deprecates the first, needs Grafana 12.
    files: ['deploy/observability/dashboards.ts'],
    rules: { '@typescript-eslint/no-deprecated': 'off' },
  },
  {
    // The root is no workspace: its tools' packages are its package.json's development dependencies.
    files: ['vitest.config.ts'],
    rules: { 'podwire/allowed-imports': 'off', 'import-x/no-extraneous-dependencies': 'off' },
  },
  {
    files: ['**/*.mjs'],
    languageOptions: { globals: { setTimeout: 'readonly', clearTimeout: 'readonly' } },
    plugins: { podwire: { rules: { 'allowed-imports': allowedImports } } },
    rules: { 'max-lines': ['error', 600], 'max-lines-per-function': ['error', 60] },
  },
  {
    files: ['deploy/**/*.mjs', 'test/**/*.mjs'],
    rules: { 'podwire/allowed-imports': 'error' },
  },
);
