-- name: commit
SELECT commit_1({placeholders});
